"""Make a data set on this machine, as OGBench made its own: scripted oracles, all cores, resumable.

Episodes are independent: each has its own seed and its own file until all are there, so the result is the same for
any number of processes, and a run that was killed goes on where it stopped. Then they are joined into OGBench's files.
"""

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import selectors
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from uhm.data import collect, expert
from uhm.data.npz import NpzFile
from uhm.data.npz_write import atomically, concatenate
from uhm.data.parts import SPLITS, Parts
from uhm.envs import rooms
from uhm.errors import UhmError
from uhm.tasks import ROOMS, Environment

EPISODES_PER_SHARD = 1000
_FORMAT = 1
# Two, so that a worker has its next episode while this process is busy joining files.
_JOBS_PER_WORKER = 2
_WORKER: tuple[str, ...] = ("-m", "uhm.data.generate_worker")

Job = tuple[int, int]  # split, episode


class Shard(NamedTuple):
    """A pair of files to make, training and validation, and the episodes they are made of."""

    stem: Path
    episodes: tuple[range, range]

    def path(self, split: int) -> Path:
        return self.stem.with_name(f"{self.stem.name}{('', '-val')[split]}.npz")

    def jobs(self) -> list[Job]:
        return [(split, episode) for split, episodes in enumerate(self.episodes) for episode in episodes]


def make(
    environment: Environment,
    data_dir: Path,
    *,
    episodes: int | None = None,
    workers: int | None = None,
    seed: int = 0,
    expert: Path | None = None,
    progress: bool = True,
    rows: int | None = None,
) -> list[Path]:
    """Generate the data set of `environment` into `data_dir` and return its files.

    `episodes` is the number of training episodes (default: the size of the official set); a tenth as many validation
    episodes come on top. `workers` is the number of processes (default: one per core). `expert` is the file of the
    policy that ants walk by (`uhm.data.expert` has its format). `rows` overrides the length of an episode.
    """
    if environment is ROOMS:
        return _rooms(data_dir.expanduser().resolve(), episodes or environment.transitions // ROOMS.episode_limit, seed)
    recipe = collect.recipe(environment)
    _check_expert(environment, recipe, expert)
    rows = rows or recipe.rows
    episodes = environment.transitions // (rows - 1) if episodes is None else episodes
    for name, value, least in (("episodes", episodes, 1), ("workers", workers, 1), ("seed", seed, 0)):
        if value is not None and value < least:
            raise UhmError(f"{name} is {value}, and must be at least {least}.")
    data_dir = data_dir.expanduser().resolve()
    shards = plan(environment, data_dir, episodes)
    paths = [shard.path(split) for shard in shards for split in range(len(SPLITS))]
    parts = Parts(data_dir / f"{environment.dataset}.parts")
    setup = {
        "environment": dataclasses.asdict(environment),
        "parts": str(parts.folder),
        "seed": seed,
        "rows": rows,
        "expert": None if expert is None else str(expert.resolve()),
    }
    try:
        if not parts.folder.exists():
            _refuse_existing(paths)
        with parts.claimed():
            parts.belong_to(_manifest(environment, seed, rows, expert))
            _fill(shards, parts, setup, workers or _cores(), progress)
            parts.remove()
    except OSError as error:
        raise UhmError(f"cannot write {error.filename or data_dir}: {error.strerror or error}.") from error
    return paths


def _rooms(data_dir: Path, episodes: int, seed: int) -> list[Path]:
    """The embedded default: all walkers at once, in a second, so there is nothing to share out or to resume."""
    paths = [data_dir / f"{ROOMS.dataset}{suffix}.npz" for suffix in ("", "-val")]
    _refuse_existing(paths)
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        for split, (path, count) in enumerate(zip(paths, (episodes, max(1, round(episodes / 10))), strict=True)):
            columns = rooms.walk(np.random.default_rng([seed, split]), count, ROOMS.episode_limit + 1)
            atomically(path, lambda file, columns=columns: np.savez(file, allow_pickle=False, **columns))
    except OSError as error:
        raise UhmError(f"cannot write {error.filename or data_dir}: {error.strerror or error}.") from error
    return paths


def plan(environment: Environment, data_dir: Path, episodes: int) -> list[Shard]:
    """The files of a data set with that many training episodes: one pair, or a folder with a pair per 1000."""
    stem = data_dir / environment.dataset
    if not environment.sharded:
        return [Shard(stem, (range(episodes), _validation(0, episodes)))]
    stem = stem / environment.dataset.replace("-100m-", "-")
    shards = []
    for number, start in enumerate(range(0, episodes, EPISODES_PER_SHARD)):
        train = range(start, min(start + EPISODES_PER_SHARD, episodes))
        shards.append(Shard(stem.with_name(f"{stem.name}-{number:03d}"), (train, _validation(start, len(train)))))
    return shards


def _validation(start: int, episodes: int) -> range:
    return range(start // 10, start // 10 + max(1, round(episodes / 10)))


def _check_expert(environment: Environment, recipe: collect.Recipe, path: Path | None) -> None:
    if recipe.needs_expert and path is None:
        raise UhmError(
            f"{environment.name} needs a walking policy: give --expert FILE.npz (its weights), or put "
            f"{environment.dataset}.npz and its -val.npz from {collect.OFFICIAL_FILES} into the data directory."
        )
    if path is not None and not recipe.needs_expert:
        raise UhmError(f"{environment.name} has its own scripted oracle: leave out --expert.")
    if path is not None:
        expert.load(path, environment.observation_size, environment.action_size)


def _manifest(environment: Environment, seed: int, rows: int, path: Path | None) -> dict[str, Any]:
    """What must be the same for episodes of two runs to belong to one data set."""
    return {
        "format": _FORMAT,
        "environment": environment.name,
        "seed": seed,
        "rows": rows,
        "expert": path and hashlib.sha256(path.read_bytes()).hexdigest(),
        "mujoco": importlib.metadata.version("mujoco"),
        "ogbench": importlib.metadata.version("ogbench"),
    }


def _refuse_existing(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.exists():
            raise UhmError(f"{path} exists and is never overwritten: delete it or give another --data-dir.")


def _fill(shards: Sequence[Shard], parts: Parts, setup: dict[str, Any], workers: int, progress: bool) -> None:
    """Make the missing episodes and join each shard's as soon as they are complete."""
    parts.clean()
    missing: dict[Job, Shard] = {}
    for shard in shards:
        joined = [_joined(shard, split, setup["rows"]) for split in range(len(SPLITS))]
        missing |= {job: shard for job in shard.jobs() if not joined[job[0]] and not parts.has(*job)}
    left = Counter(missing.values())
    for shard in shards:
        if not left[shard]:
            _join(shard, parts)
    if not missing:
        return
    total = sum(len(shard.jobs()) for shard in shards)
    done = total - len(missing)
    try:
        run = _run(list(missing), parts.folder, setup, min(workers, len(missing)))
        with _progress_bar(setup, total, done, progress) as advance, closing(run):
            for job in run:
                done += 1
                advance()
                left[missing[job]] -= 1
                if not left[missing[job]]:
                    _join(missing[job], parts)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"stopped with {done} of {total} episodes on disk: the same command again goes on from there."
        ) from None


def _joined(shard: Shard, split: int, rows: int) -> bool:
    """Whether an earlier, interrupted run has already joined this file."""
    path = shard.path(split)
    if not path.exists():
        return False
    found, wanted = NpzFile(path).require("terminals", 1).shape[0], len(shard.episodes[split]) * rows
    if found != wanted:
        raise UhmError(f"{path} exists with {found} rows, not {wanted}, and is never overwritten: delete it.")
    return True


def _join(shard: Shard, parts: Parts) -> None:
    shard.stem.parent.mkdir(parents=True, exist_ok=True)
    for split, episodes in enumerate(shard.episodes):
        if not shard.path(split).exists():
            concatenate(shard.path(split), [parts.path(split, episode) for episode in episodes])
    for job in shard.jobs():
        parts.discard(*job)


def _run(jobs: Sequence[Job], folder: Path, setup: dict[str, Any], count: int) -> Generator[Job, None, None]:
    """Give the jobs to `count` worker processes and yield each one that is done."""
    waiting = iter(jobs)
    workers: list[subprocess.Popen[bytes]] = []
    held: dict[int, list[Job]] = {}
    try:
        with selectors.DefaultSelector() as selector:
            for number in range(count):
                worker = _start(folder, setup, number)
                workers.append(worker)
                held[number] = []
                assert worker.stdout
                selector.register(worker.stdout, selectors.EVENT_READ, number)
            for _ in range(_JOBS_PER_WORKER):
                for number in range(count):
                    _give(workers[number], held[number], waiting)
            while any(held.values()):
                for key, _ in selector.select():
                    number = key.data
                    yield _answer(workers[number], held[number], _log(folder, number))
                    _give(workers[number], held[number], waiting)
    finally:
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.communicate()


def _start(folder: Path, setup: dict[str, Any], number: int) -> subprocess.Popen[bytes]:
    # A program of its own and not `multiprocessing`: that would import the caller's main module, and JAX with it.
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with _log(folder, number).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", *_WORKER, json.dumps(setup)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            bufsize=0,
            cwd=folder,  # MuJoCo leaves its log in the working directory
            env=os.environ | single | {"PYTHONPATH": path, "PYTHONWARNINGS": "ignore"},
            start_new_session=True,  # Ctrl-C is for this process alone, which then ends the workers
        )


def _log(folder: Path, number: int) -> Path:
    return folder / f"worker-{number}.log"


def _give(worker: subprocess.Popen[bytes], held: list[Job], waiting: Iterator[Job]) -> None:
    job = next(waiting, None)
    if job is None:
        return
    held.append(job)
    assert worker.stdin
    # A dead worker's output, read next, ends as well and tells which episode it was at.
    with suppress(BrokenPipeError):
        worker.stdin.write(json.dumps(job).encode() + b"\n")


def _answer(worker: subprocess.Popen[bytes], held: list[Job], log: Path) -> Job:
    assert worker.stdout
    line = worker.stdout.readline()
    split, episode = held[0]
    if not line.endswith(b"\n"):
        error = f"the process died (exit status {worker.wait()})"
    else:
        error = json.loads(line).get("error")
    if error:
        raise UhmError(
            f"{SPLITS[split]} episode {episode} failed: {error.rstrip('.')}; finished episodes are kept, "
            f"the same command again goes on (details: {log})."
        )
    return held.pop(0)


@contextmanager
def _progress_bar(setup: dict[str, Any], total: int, done: int, wanted: bool) -> Iterator[Any]:
    """A bar with episodes, transitions per second and the time left; nothing where nobody watches."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("episodes  {task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not (wanted and console.is_terminal)) as bar:
        task = bar.add_task(setup["environment"]["name"], total=total, completed=done, rate="")

        def advance() -> None:
            bar.advance(task)
            speed = bar.tasks[0].speed
            bar.update(task, rate=f"{speed * (setup['rows'] - 1):,.0f} transitions/s" if speed else "")

        yield advance


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
