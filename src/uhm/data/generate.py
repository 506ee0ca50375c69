"""Make a data set on this machine, as OGBench made its own: scripted oracles, all cores, resumable.

Episodes are independent: each has its own seed and its own file until all are there, so the result is the same for
any number of processes, and a run that was killed goes on where it stopped. Then they are joined into OGBench's files.
"""

import dataclasses
import itertools
import json
import os
import selectors
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from uhm.data.existing import as_asked
from uhm.data.npz_write import concatenate, save, writing_data
from uhm.data.order import Job, Order, Shard, order
from uhm.data.parts import SPLITS, Parts, as_note
from uhm.envs import rooms
from uhm.errors import UhmError
from uhm.lines import tenths
from uhm.tasks import ROOMS, Environment

# Two, so that a worker has its next episode while this process is busy joining files.
_JOBS_PER_WORKER = 2
_WORKER: tuple[str, ...] = ("-m", "uhm.data.generate_worker")


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
    episodes come on top. `workers` is the number of processes (default: one per core). `expert` is the file of
    another policy for ants to walk by (`uhm.data.expert` has its format). `rows` overrides the length of an episode.

    A set that is there as it is asked for stays as it is. One that differs, as far as its files tell, is an error.
    """
    if workers is not None and workers < 1:
        raise UhmError(f"workers is {workers}, and must be at least 1.")
    asked = order(environment, data_dir, episodes, seed, expert, rows)
    with writing_data(asked.data_dir):
        if not asked.finished():
            if environment is ROOMS:
                _make_rooms(asked)
            else:
                _make_episodes(asked, workers or _cores(), progress)
    return list(asked.files)


def finished(
    environment: Environment,
    data_dir: Path,
    *,
    episodes: int | None = None,
    seed: int = 0,
    expert: Path | None = None,
    rows: int | None = None,
) -> bool:
    """Whether `make` has nothing left to do. What it would refuse is refused here, before it takes its time."""
    asked = order(environment, data_dir, episodes, seed, expert, rows)
    with writing_data(asked.data_dir):
        return asked.finished()


def _make_rooms(asked: Order) -> None:
    """The embedded default: all walkers at once, in a second, so there is nothing to share out."""
    asked.data_dir.mkdir(parents=True, exist_ok=True)
    seed, rows = asked.manifest["seed"], asked.manifest["rows"]
    for path, (split, episodes) in asked.files.items():
        if not path.exists():  # one of the two is there after a kill between them
            columns = rooms.walk(np.random.default_rng([seed, split]), episodes, rows)
            save(path, columns, as_note(asked.manifest))


def _make_episodes(asked: Order, workers: int, progress: bool) -> None:
    parts = asked.parts
    setup = {
        "environment": dataclasses.asdict(asked.environment),
        "parts": str(parts.folder),
        "seed": asked.manifest["seed"],
        "rows": asked.manifest["rows"],
        "expert": None if asked.expert is None else str(asked.expert.resolve()),
    }
    with parts.claimed():
        parts.belong_to(asked.manifest)
        parts.refuse_more_than(job for shard in asked.shards for job in shard.jobs())
        _fill(asked.shards, parts, setup, workers, progress)
        parts.remove()


def _fill(shards: Sequence[Shard], parts: Parts, setup: dict[str, Any], workers: int, progress: bool) -> None:
    """Make the missing episodes and join each shard's as soon as they are complete."""
    parts.clean()
    missing: dict[Job, Shard] = {}
    manifest = json.loads(parts.note)
    for shard in shards:
        # An earlier, interrupted run may have joined a file already.
        joined = [as_asked(shard.path(split), len(shard.episodes[split]), manifest) for split in (0, 1)]
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


def _join(shard: Shard, parts: Parts) -> None:
    shard.stem.parent.mkdir(parents=True, exist_ok=True)
    for split, episodes in enumerate(shard.episodes):
        if not shard.path(split).exists():
            concatenate(shard.path(split), [parts.path(split, episode) for episode in episodes], parts.note)
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
                    if not held[number]:  # idle, so what can be read is its end, and nothing waits for it
                        selector.unregister(key.fileobj)
                        continue
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
    """A bar with episodes, transitions per second and the time left; where nobody watches, ten lines instead."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if wanted and not console.is_terminal:
        tell, counts = tenths(setup["environment"]["name"], "episode", total, done), itertools.count(done + 1)
        yield lambda: tell(next(counts), "")
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("episodes  {task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not wanted) as bar:
        task = bar.add_task(setup["environment"]["name"], total=total, completed=done, rate="")

        def advance() -> None:
            bar.advance(task)
            speed = bar.tasks[0].speed
            bar.update(task, rate=f"{speed * (setup['rows'] - 1):,.0f} transitions/s" if speed else "")

        yield advance


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
