"""Downloads against a real HTTP server on this machine that can cut, corrupt, change and lose its files."""

import hashlib
import io
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.progress import Progress

from uhm import tasks
from uhm.data import download as module
from uhm.data import transfer
from uhm.data.download import download, files, official_url
from uhm.errors import UhmError

CUBE = tasks.environment("cube-double-play")
HUMANOID = tasks.environment("humanoidmaze-large-navigate")
LONG = tasks.environment("cube-triple-play")
TRAIN, VAL = "cube-double-play-v0.npz", "cube-double-play-v0-val.npz"


def npz(seed: int, rows: int = 20_000) -> bytes:
    """Incompressible, so that its size is known and cuts fall into the arrays."""
    buffer = io.BytesIO()
    np.savez(buffer, observations=np.random.default_rng(seed).random((rows, 3)))
    return buffer.getvalue()


@dataclass
class Site:
    """What the server has, how it misbehaves, and what it was asked."""

    files: dict[str, bytes]
    url: str = ""
    ranges: bool = True
    misplaced: int = 0  # how far answers to ranges begin behind what was asked for
    validators: bool = True
    cuts: list[int] = field(default_factory=list)  # body bytes before the connection breaks, one per answer
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    sent: int = 0

    def asked(self, name: str) -> list[str | None]:
        """The Range headers of the requests for this file, in order."""
        return [wanted for path, wanted in self.requests if path == f"/{name}"]


def handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.requests.append((self.path, self.headers.get("Range")))
            body = site.files.get(self.path.lstrip("/"))
            if body is None:
                self.send_error(404)
                return
            tag = f'"{hashlib.md5(body).hexdigest()}"'
            start, status = 0, 200
            wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            if wanted and site.ranges and self.headers.get("If-Range", tag) == tag:
                start, status = int(wanted[1]) + site.misplaced, 206
            if start >= len(body):
                self.send_error(416)
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) - start))
            if site.validators:
                self.send_header("ETag", tag)
            if status == 206:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            self.end_headers()
            rest = body[start:]
            if site.cuts and self.path.endswith(".npz"):
                rest = rest[: site.cuts.pop(0)]
            site.sent += len(rest)  # before the client can have it all and a test look
            self.wfile.write(rest)
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@pytest.fixture
def serve() -> Iterator:
    """A function that starts a site with the given files; all are stopped at the end."""
    servers: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def start(contents: dict[str, bytes]) -> Site:
        site = Site(contents)
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler(site))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread))
        site.url = f"http://127.0.0.1:{server.server_address[1]}"
        return site

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def closed() -> str:
    """An address where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


@pytest.fixture(autouse=True)
def official(monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    """No test leaves this machine: the official server is down unless a test says otherwise."""
    monkeypatch.setattr(module, "official_url", lambda: closed)
    monkeypatch.delenv("UHM_MIRRORS", raising=False)


@pytest.fixture
def site(serve) -> Site:
    return serve({TRAIN: npz(0), VAL: npz(1, rows=2_000)})


def get(site: Site, folder: Path, environment: tasks.Environment = CUBE, **options) -> list[Path]:
    return download(environment, folder, mirrors=[site.url], progress=False, **options)


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_official_url_is_the_one_ogbench_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OGBench's own downloader, stopped at its first request, says where it would have gone."""
    import ogbench.utils

    asked: list[str] = []

    def stop(url, *_args, **_options):
        asked.append(url)
        raise ConnectionError

    monkeypatch.setattr("urllib.request.urlopen", stop)
    with pytest.raises(ConnectionError):
        ogbench.utils.download_datasets(["cube-double-play-v0"], dataset_dir=str(tmp_path))
    assert asked == [f"{official_url()}/{files(CUBE)[0]}"]


def test_plain_download(site: Site, tmp_path: Path) -> None:
    paths = get(site, tmp_path / "new")
    assert paths == [tmp_path / "new" / TRAIN, tmp_path / "new" / VAL]
    assert [path.read_bytes() for path in paths] == [site.files[TRAIN], site.files[VAL]]
    assert names(tmp_path / "new") == {TRAIN, VAL}
    np.testing.assert_array_equal(np.load(paths[0])["observations"], np.random.default_rng(0).random((20_000, 3)))


def test_the_bar_is_drawn_on_the_error_stream(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    download(CUBE, tmp_path, mirrors=[site.url])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert TRAIN in captured.err


def test_existing_files_are_not_asked_for(site: Site, tmp_path: Path) -> None:
    mine = npz(7, rows=10)
    (tmp_path / TRAIN).write_bytes(mine)
    get(site, tmp_path)
    assert (tmp_path / TRAIN).read_bytes() == mine
    assert site.asked(TRAIN) == []
    assert site.asked(VAL) == [None]


def test_an_existing_broken_file_is_named_and_left_alone(site: Site, tmp_path: Path) -> None:
    (tmp_path / TRAIN).write_bytes(b"half a file")
    with pytest.raises(UhmError, match=f"{TRAIN} is not a readable npz file; remove it"):
        get(site, tmp_path)
    assert (tmp_path / TRAIN).read_bytes() == b"half a file"


def test_cuts_within_one_call_are_resumed(site: Site, tmp_path: Path) -> None:
    site.cuts = [100_000, 50_000]
    get(site, tmp_path)
    assert site.asked(TRAIN) == [None, "bytes=100000-", "bytes=150000-"]
    assert site.sent == len(site.files[TRAIN]) + len(site.files[VAL])  # no byte twice
    assert (tmp_path / TRAIN).read_bytes() == site.files[TRAIN]


def cut_call(site: Site, folder: Path, after: int) -> None:
    """A call that ends with only `after` bytes of the training file here."""
    site.cuts = [after] + [0] * transfer.FRUITLESS_ATTEMPTS
    with pytest.raises(UhmError, match=f"connection lost after {after} of {len(site.files[TRAIN])} bytes"):
        get(site, folder)
    assert names(folder) == {f"{TRAIN}.part", f"{TRAIN}.part.json"}
    assert not site.cuts


def test_the_next_call_resumes(site: Site, tmp_path: Path) -> None:
    cut_call(site, tmp_path, 123_456)
    get(site, tmp_path)
    assert site.asked(TRAIN)[-1] == "bytes=123456-"
    assert site.sent == len(site.files[TRAIN]) + len(site.files[VAL])
    assert (tmp_path / TRAIN).read_bytes() == site.files[TRAIN]
    assert names(tmp_path) == {TRAIN, VAL}


def test_ctrl_c_leaves_the_part(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "CHUNK", 1000)
    calls = iter(range(100))

    def interrupt(*_args, **_options) -> None:
        if next(calls) == 50:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Progress, "advance", interrupt)
        get(site, tmp_path)
    assert (tmp_path / f"{TRAIN}.part").stat().st_size == 51_000
    get(site, tmp_path)
    assert site.asked(TRAIN) == [None, "bytes=51000-"]
    assert (tmp_path / TRAIN).read_bytes() == site.files[TRAIN]


def test_a_changed_file_starts_over(site: Site, tmp_path: Path) -> None:
    cut_call(site, tmp_path, 100_000)
    site.files[TRAIN] = npz(5)
    before = site.sent
    get(site, tmp_path)
    assert site.sent - before == len(npz(5)) + len(site.files[VAL])  # one answer with the whole of it, no guess
    assert (tmp_path / TRAIN).read_bytes() == npz(5)


def test_a_server_without_ranges_starts_over(site: Site, tmp_path: Path) -> None:
    cut_call(site, tmp_path, 100_000)
    site.ranges = False
    get(site, tmp_path)
    assert site.sent == 100_000 + len(site.files[TRAIN]) + len(site.files[VAL])
    assert (tmp_path / TRAIN).read_bytes() == site.files[TRAIN]


def test_an_answer_that_begins_elsewhere_is_not_appended(site: Site, tmp_path: Path) -> None:
    cut_call(site, tmp_path, 100_000)
    site.misplaced = 7
    get(site, tmp_path)
    assert site.asked(TRAIN)[-2:] == ["bytes=100000-", None]
    assert (tmp_path / TRAIN).read_bytes() == site.files[TRAIN]


def test_a_part_that_is_too_long_starts_over(serve, tmp_path: Path) -> None:
    """A real server answers 416 to a range behind the end."""
    site = serve({TRAIN: npz(0), VAL: npz(1, rows=10)})
    cut_call(site, tmp_path, 100_000)
    with (tmp_path / f"{TRAIN}.part").open("ab") as file:
        file.write(bytes(1_000_000))
    get(site, tmp_path)
    assert (tmp_path / TRAIN).read_bytes() == site.files[TRAIN]


def test_a_file_without_version_starts_over(site: Site, tmp_path: Path) -> None:
    """Without ETag or date nobody can tell whether the rest still belongs to the beginning."""
    site.validators = False
    site.cuts = [100_000] * 10
    with pytest.raises(UhmError):
        get(site, tmp_path)
    site.cuts = []
    get(site, tmp_path)
    assert set(site.asked(TRAIN)) == {None}
    assert (tmp_path / TRAIN).read_bytes() == site.files[TRAIN]


def test_two_versions_joined_are_noticed(site: Site, tmp_path: Path) -> None:
    """A server that claims the part's version for other bytes: the arrays' own CRC gives it away."""
    cut_call(site, tmp_path, 100_000)
    part = tmp_path / f"{TRAIN}.part"
    part.write_bytes(b"x" + part.read_bytes()[1:-1] + b"x")
    get(site, tmp_path)
    assert (tmp_path / TRAIN).read_bytes() == site.files[TRAIN]
    assert site.asked(TRAIN)[-2:] == ["bytes=100000-", None]


def test_a_complete_part_is_only_verified(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(transfer.Part, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        get(site, tmp_path)
    get(site, tmp_path)
    assert site.asked(TRAIN) == [None]
    assert (tmp_path / TRAIN).read_bytes() == site.files[TRAIN]


def test_mirrors_are_asked_in_order_and_the_official_server_last(
    serve, site: Site, closed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = serve({})
    monkeypatch.setattr(module, "official_url", lambda: f"{site.url}/")
    monkeypatch.setenv("UHM_MIRRORS", f" {closed}, {empty.url}/ ,")
    download(CUBE, tmp_path, progress=False)
    assert empty.asked(TRAIN) == [None]
    assert (tmp_path / TRAIN).read_bytes() == site.files[TRAIN]


def test_the_argument_comes_before_the_variable(serve, site: Site, tmp_path: Path, monkeypatch) -> None:
    other = serve({})
    monkeypatch.setenv("UHM_MIRRORS", other.url)
    get(site, tmp_path)
    assert other.requests == []


def test_another_mirror_continues_what_one_began(serve, site: Site, tmp_path: Path) -> None:
    site.cuts = [100_000, 0, 0, 0]
    second = serve(dict(site.files))
    download(CUBE, tmp_path, mirrors=[site.url, second.url], progress=False)
    assert second.asked(TRAIN) == ["bytes=100000-"]
    assert (tmp_path / TRAIN).read_bytes() == site.files[TRAIN]


@pytest.mark.parametrize("place", ["server", "local", "code"])
def test_a_wrong_checksum_is_refused(site: Site, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = f"{'0' * 64}  {TRAIN}\n"
    if place == "server":
        site.files["SHA256SUMS"] = listing.encode()
    elif place == "local":
        (tmp_path / "SHA256SUMS").write_text(listing)
    else:
        monkeypatch.setitem(module.KNOWN_SHA256, TRAIN, "0" * 64)
    with pytest.raises(UhmError, match="wrong checksum"):
        get(site, tmp_path)
    assert names(tmp_path) <= {"SHA256SUMS"}


def test_a_right_checksum_is_accepted(site: Site, tmp_path: Path) -> None:
    site.files["SHA256SUMS"] = f"{hashlib.sha256(site.files[TRAIN]).hexdigest()} *./{TRAIN}\n".encode()
    get(site, tmp_path)
    assert site.asked("SHA256SUMS") == [None]  # once for both files


def test_a_mirror_with_a_wrong_file_is_passed_over(serve, site: Site, tmp_path: Path) -> None:
    bad = serve({TRAIN: npz(3), VAL: npz(4)})
    (tmp_path / "SHA256SUMS").write_text(f"{hashlib.sha256(site.files[TRAIN]).hexdigest()}  {TRAIN}\n")
    download(CUBE, tmp_path, mirrors=[bad.url, site.url], progress=False)
    assert (tmp_path / TRAIN).read_bytes() == site.files[TRAIN]


@pytest.mark.parametrize("damage", ["page", "flipped", "truncated"])
def test_damaged_files_are_refused(site: Site, tmp_path: Path, damage: str) -> None:
    """No checksum is known here: the zip format itself has to tell."""
    good = site.files[TRAIN]
    site.files[TRAIN] = {
        "page": b"<html>Please log in</html>",
        "flipped": good[:9000] + bytes([good[9000] ^ 1]) + good[9001:],
        "truncated": good[:-100],
    }[damage]
    with pytest.raises(UhmError, match=r"not a readable npz file|is damaged"):
        get(site, tmp_path)
    assert names(tmp_path) == set()


def test_a_missing_file(serve, tmp_path: Path) -> None:
    with pytest.raises(UhmError, match=rf"cannot download {TRAIN} \(127.0.0.1:\d+: has no such file \(404\)"):
        get(serve({}), tmp_path)


@pytest.mark.parametrize("environment", [CUBE, HUMANOID, LONG], ids=lambda e: e.name)
def test_offline_is_one_line_that_says_what_to_do(environment: tasks.Environment, tmp_path: Path) -> None:
    with pytest.raises(UhmError) as caught:
        download(environment, tmp_path, progress=False)
    message = str(caught.value)
    assert "\n" not in message
    assert "no connection (Connection refused)" in message
    assert ("`uhm data make" in message) == (environment is not HUMANOID)  # nobody has taught one to walk
    if environment is not HUMANOID:
        assert f"`uhm data make {environment.name}`" in message
    assert str(tmp_path / LONG.dataset if environment is LONG else tmp_path) in message
    assert names(tmp_path) == set()


@pytest.mark.parametrize("mirror", ["http://[::1", "http://", "ftp://host/data"])
def test_mirrors_that_are_no_addresses(mirror: str, tmp_path: Path) -> None:
    with pytest.raises(UhmError, match="is not an address; write http://HOST/FOLDER"):
        download(CUBE, tmp_path, mirrors=[mirror], progress=False)


def test_two_processes_download_once(serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second waits for the first, and finds that nothing is left to do."""
    asked: list[str] = []
    inside, go_on = threading.Event(), threading.Event()
    fetch = module._fetch

    def slowly(bases: list[str], name: str, path: Path, *rest: Any) -> dict[str, str]:
        asked.append(name)
        inside.set()
        assert go_on.wait(10)
        return fetch(bases, name, path, *rest)

    site = serve({TRAIN: npz(0), VAL: npz(1)})
    with ThreadPoolExecutor(2) as both, pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_fetch", slowly)
        first = both.submit(get, site, tmp_path)
        assert inside.wait(10)
        second = both.submit(get, site, tmp_path)
        while "another process is downloading it; waiting" not in capsys.readouterr().err:
            time.sleep(0.01)
        go_on.set()
        assert first.result() == second.result()
    assert len(asked) == len(set(asked))
    assert names(tmp_path) == {TRAIN, VAL}


def test_an_unknown_host_fails_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def no_dns(*args: object, **_options: object) -> list:
        calls.append(args)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_dns)
    with pytest.raises(UhmError, match="Name or service not known"):
        download(CUBE, tmp_path, progress=False)
    assert len(calls) == 1


def test_shards(serve, tmp_path: Path) -> None:
    folder = "cube-triple-play-100m-v0"
    shard = [f"{folder}/cube-triple-play-v0-{i:03d}{part}.npz" for i in range(3) for part in ("", "-val")]
    site = serve({name: npz(i, rows=10) for i, name in enumerate(shard)})
    site.files[f"{folder}/SHA256SUMS"] = (
        f"{hashlib.sha256(site.files[shard[0]]).hexdigest()}  {shard[0][25:]}\n".encode()
    )
    paths = get(site, tmp_path, LONG, shards=2)
    assert paths == [tmp_path / name for name in shard[:4]]
    assert names(tmp_path) == set(shard[:4])
    assert site.asked(f"{folder}/SHA256SUMS") == [None]


def test_the_number_of_shards_follows_the_protocol() -> None:
    """The paper's 10M transitions are 10 files of 1M, or 2.5 files of 4M."""
    assert len(files(LONG)) == 20
    giant = files(tasks.environment("humanoidmaze-giant-navigate"))
    assert giant[-1] == "humanoidmaze-giant-navigate-100m-v0/humanoidmaze-giant-navigate-v0-002-val.npz"
    assert len(giant) == 6


@pytest.mark.parametrize(
    ("environment", "shards", "message"),
    [
        (LONG, 0, "has 1 to 100 shards, not 0"),
        (tasks.environment("humanoidmaze-giant-navigate"), 26, "has 1 to 25 shards"),
        (CUBE, 2, "is one file"),
        (tasks.ROOMS, None, "make it with `uhm data make rooms`"),
    ],
)
def test_what_cannot_be_downloaded(environment: tasks.Environment, shards: int | None, message: str) -> None:
    with pytest.raises(UhmError, match=message):
        files(environment, shards)


def test_a_mirror_must_be_an_address(tmp_path: Path) -> None:
    with pytest.raises(UhmError, match=r"mirror 'example\.org/data' is not an address"):
        download(CUBE, tmp_path, mirrors=["example.org/data"], progress=False)


def test_a_data_directory_that_cannot_be_written(site: Site, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(UhmError, match=r"cannot write .*taken.*: Not a directory; .* --data-dir or UHM_DATA_DIR"):
        get(site, tmp_path / "taken" / "below")
