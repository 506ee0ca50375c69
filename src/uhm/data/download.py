"""Official OGBench files over HTTP: resumable, from mirrors if there are any, and never half-written.

A file grows as `NAME.npz.part` (see `uhm.data.transfer`). Only when its length, the CRC-32 that the zip format stores
for every array, and a SHA-256 where somebody knows one are all right does it get its name. OGBench publishes no sums,
so they come from a file `SHA256SUMS` beside the data, here or on the server.
"""

import contextlib
import fcntl
import os
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from uhm.data import available
from uhm.data.npz_write import writing_data
from uhm.data.transfer import Cut, Part, Rejected, ServerError, chunks, open_url, transfer
from uhm.errors import UhmError
from uhm.tasks import Environment

MIRRORS_VARIABLE = "UHM_MIRRORS"
SUMS_NAME = "SHA256SUMS"
SUMS_CHUNKS = 4  # no listing of sums is longer than this many chunks
# SHA-256 by path below the data directory. Empty: no sum has been checked against an official file yet.
KNOWN_SHA256: dict[str, str] = {}
_SUM_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](?:\./)?(\S+)")


def official_url() -> str:
    """Where OGBench keeps its files, as the installed package says."""
    from ogbench.utils import DATASET_URL

    return DATASET_URL


def files(environment: Environment, shards: int | None = None) -> list[str]:
    """The paths, below the data directory or a server's base URL, of the files that make up the data set."""
    if not available.official(environment):
        raise UhmError(f"{environment.name} has no official files; make it with `uhm data make {environment.name}`.")
    if not environment.sharded:
        if shards is not None:
            raise UhmError(f"{environment.name} is one file, not shards; leave out the number of shards.")
        return [f"{environment.dataset}.npz", f"{environment.dataset}-val.npz"]
    per_shard = 4_000_000 if environment.name.startswith("humanoidmaze-giant") else 1_000_000
    most = 100_000_000 // per_shard
    count = -(-environment.transitions // per_shard) if shards is None else shards
    if not 1 <= count <= most:
        raise UhmError(f"{environment.name} has 1 to {most} shards, not {count}.")
    stem = f"{environment.dataset}/{environment.dataset.replace('-100m', '')}"
    return [f"{stem}-{i:03d}{part}.npz" for i in range(count) for part in ("", "-val")]


def download(
    environment: Environment,
    data_dir: Path,
    *,
    shards: int | None = None,
    mirrors: Sequence[str] | None = None,
    progress: bool = True,
) -> list[Path]:
    """Fetch what is missing of the environment's data set and return the paths of all its files.

    `mirrors` are base URLs, asked in order before the official server; without the argument the environment variable
    UHM_MIRRORS names them, separated by commas. `shards` takes the first so many files of a 100M set.
    """
    data_dir = data_dir.expanduser()
    wanted = files(environment, shards)
    bases = _bases(mirrors)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not progress,
    )
    sums = _ServerSums()
    with bar:
        for name in wanted:
            path = data_dir / name
            if path.exists():
                if not zipfile.is_zipfile(path):
                    raise UhmError(f"{path} is not a readable npz file; remove it and download it again.")
                continue
            with writing_data(path.parent):  # errors of the network never come this far: this is the disk
                path.parent.mkdir(parents=True, exist_ok=True)
                with _alone(path):
                    failures = {} if path.exists() else _fetch(bases, name, path, bar, sums)
            if failures:
                raise UhmError(_advice(environment, name, data_dir, failures))
    return [data_dir / name for name in wanted]


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the download of `path` for this process; waits for another one, which may be doing all the work."""
    lock = path.with_name(f"{path.name}.part.lock")
    while True:
        file = lock.open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{path.name}: another process is downloading it; waiting ...", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        # Whoever held it has removed it at the end, and a lock on what has no name holds nobody off.
        if lock.exists() and os.path.samestat(lock.stat(), os.fstat(file.fileno())):
            break
        file.close()
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        file.close()


def _bases(mirrors: Sequence[str] | None) -> list[str]:
    if mirrors is None:
        mirrors = os.environ.get(MIRRORS_VARIABLE, "").split(",")
    bases = [base for base in (mirror.strip().rstrip("/") for mirror in mirrors) if base]
    for base in bases:
        if not _is_address(base):
            raise UhmError(f"mirror '{base}' is not an address; write http://HOST/FOLDER or https://HOST/FOLDER.")
    return list(dict.fromkeys([*bases, official_url().rstrip("/")]))


def _is_address(base: str) -> bool:
    try:
        found = urlsplit(base)
    except ValueError:
        return False
    return found.scheme in ("http", "https") and bool(found.netloc)


def _advice(environment: Environment, name: str, data_dir: Path, failures: dict[str, str]) -> str:
    """One line: what failed where, and the ways to get the data nonetheless."""
    tried = "; ".join(f"{urlsplit(base).netloc}: {why}" for base, why in failures.items())
    make = f"make the data with `uhm data make {environment.name}`, " if available.makeable(environment) else ""
    where = data_dir / environment.dataset if environment.sharded else data_dir
    place = f"name a mirror in {MIRRORS_VARIABLE}, or place OGBench's files in {where}"
    advice = f"{make}{place}."
    return " ".join(f"cannot download {name} ({tried}). {advice[0].upper()}{advice[1:]}".split())


def _fetch(bases: list[str], name: str, path: Path, bar: Progress, sums: "_ServerSums") -> dict[str, str]:
    """Put the file at `path` from the first server that can; empty on success, else why each server failed."""
    failures: dict[str, str] = {}
    part = Part.beside(path)
    task = bar.add_task(path.name, total=None)
    for base in bases:

        def attempt(base: str = base) -> None:
            transfer(f"{base}/{name}", part, bar, task)
            part.verify(_local_sum(path) or KNOWN_SHA256.get(name) or sums.get(base, name))

        resumed = part.size > 0
        try:
            try:
                attempt()
            except Rejected:
                if not resumed:
                    raise
                # The beginning may be of another version than the end: a file from one piece has its chance.
                attempt()
        except (ServerError, Rejected) as error:
            failures[base] = str(error)
        else:
            part.finish(path)
            return {}
    return failures


def _sums(text: str) -> dict[str, str]:
    """The lines of `sha256sum`; anything else, such as an error page served as a success, is no sum."""
    matches = (_SUM_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return {match[2]: match[1] for match in matches if match}


def _local_sum(path: Path) -> str | None:
    listing = path.with_name(SUMS_NAME)
    return _sums(listing.read_text()).get(path.name) if listing.is_file() else None


class _ServerSums:
    """The SHA256SUMS of each folder of each server, asked for once."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, str]] = {}

    def get(self, base: str, name: str) -> str | None:
        folder, _, file = f"{base}/{name}".rpartition("/")
        if folder not in self._seen:
            self._seen[folder] = {}
            with contextlib.suppress(ServerError, Cut), open_url(f"{folder}/{SUMS_NAME}") as response:
                self._seen[folder] = _sums(b"".join(islice(chunks(response), SUMS_CHUNKS)).decode(errors="replace"))
        return self._seen[folder].get(file)
