"""One population from start to end in a process of its own: `python -m uhm.suites.worker`, or a Ray task.

The process reads its job from the first line of standard input, and stops, saving everything, when standard input ends:
so it never outlives its parent. It answers with one line of JSON on standard output.
"""

import json
import os
import signal
import sys
import threading
import traceback
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from uhm.errors import UhmError
from uhm.suites.lease import Lease, lease_of


class Job(NamedTuple):
    """What a worker needs to know, as plain JSON."""

    directory: str
    plan: dict[str, Any]
    platform: str  # gpu or cpu
    cores: tuple[int, ...] = ()  # those that this worker and its evaluation may use; none: all
    patience: float = 30.0
    where: str = ""


class Outcome(NamedTuple):
    """`state` is done, failed or stopped."""

    state: str
    reason: str = ""


def work(job: Job) -> Outcome:
    """Start or resume the run and train it to its end. JAX must not have been imported before."""
    _settle(job)
    directory = Path(job.directory)
    try:
        with Lease(lease_of(directory), directory, job.patience, job.where):
            _train(job, directory)
        return Outcome("done")
    except UhmError as error:
        return Outcome("failed", str(error))
    except KeyboardInterrupt:
        return Outcome("stopped")
    except Exception as error:  # the others go on; the traceback is in the log
        traceback.print_exc()
        line = (str(error).strip().splitlines() or [""])[0]
        return Outcome("failed", f"{type(error).__name__}: {line[:200]}")


def _settle(job: Job) -> None:
    """Choose device and cores, before JAX looks at either: evaluation starts a process per core it may use."""
    if job.platform == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    if job.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, job.cores)


def _train(job: Job, directory: Path) -> None:
    import jax

    from uhm.runs import programs
    from uhm.train import Plan, resume, start

    if job.platform == "gpu" and jax.default_backend() == "cpu":
        raise UhmError("there is a GPU, but JAX does not see it: pip install '.[cuda]' in the clone, or --device cpu.")
    programs.keep()
    if (directory / "config.json").exists():
        resume(directory)
    else:
        start(Plan.from_json(job.plan), directory)


def share(cores: list[int], index: int, of: int) -> tuple[int, ...]:
    """The cores of one of several workers side by side; all have some, and none has another's if they suffice."""
    if of <= 1:
        return ()
    return tuple(cores[index::of]) or (cores[index % len(cores)],)


def usable_cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n") and (more := os.read(0, 1)):
        line += more
    return line


def main() -> None:
    warnings.showwarning = lambda message, *_: print(f"uhm: warning: {message}", file=sys.stderr)
    job = Job(**json.loads(_first_line()))
    asked = threading.Event()

    def stop(*_: object) -> None:
        if not asked.is_set():  # a second SIGINT would interrupt the saving
            asked.set()
            os.kill(os.getpid(), signal.SIGINT)

    def watch() -> None:
        while os.read(0, 1024):  # not through sys.stdin, whose lock a thread must not hold when the process ends
            pass
        stop()

    signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=watch, daemon=True).start()
    answer, sys.stdout = sys.stdout, sys.stderr  # what others print goes to the log
    try:
        outcome = work(job)
    except KeyboardInterrupt:  # before there was anything to save
        outcome = Outcome("stopped")
    asked.set()
    print(json.dumps(outcome._asdict()), file=answer, flush=True)


if __name__ == "__main__":
    main()
