"""What the run directories say, read without disturbing whoever writes them."""

import fcntl
import json
import statistics
from pathlib import Path
from typing import Any, Literal, NamedTuple

from uhm.errors import UhmError
from uhm.runs.files import read_json
from uhm.suites.plan import Population, differences

State = Literal["done", "running", "interrupted", "left", "differs"]


class Status(NamedTuple):
    """`step` is the last logged one, `success` that of the last evaluation, `note` why the state is as it is."""

    state: State
    step: int = 0
    success: float | None = None
    note: str = ""


class Progress(NamedTuple):
    step: int = 0
    success: float | None = None


def status(population: Population) -> Status:
    directory = population.directory
    if not (directory / "config.json").exists():
        return Status("left")
    try:
        other = differences(population.plan, read_json(directory / "config.json"))
    except UhmError as error:
        other = str(error)
    now = progress(population)
    if other:
        return Status("differs", now.step, now.success, f"was run with {other}")
    if (directory / "summary.json").exists():
        return Status("done", population.steps, _score(directory))
    state = "running" if in_use(directory) else "interrupted"
    return Status(state, now.step, now.success)


def progress(population: Population) -> Progress:
    """The last logged step and the mean success of the last evaluation, from the ends of the files alone."""
    metrics = tail(population.directory / "metrics.jsonl", 1)
    step = metrics[-1]["step"] if metrics else 0
    episodes = tail(population.directory / "episodes.jsonl", population.members * population.plan.eval_episodes)
    latest = [e["success"] for e in episodes if e["step"] == episodes[-1]["step"]]
    return Progress(step, statistics.mean(latest) if latest else None)


def tail(path: Path, count: int, window: int = 1 << 16) -> list[dict[str, Any]]:
    """The last `count` complete JSON lines of a file that may be growing, or as many as it has.

    Lines of large populations are long: `window`, the bytes that are read of its end, grows until they are in it.
    """
    whole: list[bytes] = []
    try:
        with path.open("rb") as file:
            length = file.seek(0, 2)
            read = 0
            while len(whole) < count and read < length:
                read = min(window, length)
                file.seek(length - read)
                lines = file.read(read).split(b"\n")
                # What precedes the first and follows the last line break is torn.
                whole = [line for line in lines[1 if read < length else 0 : -1] if line]
                window *= 4
    except OSError:
        return []
    return [json.loads(line) for line in whole[-count:]]


def in_use(directory: Path) -> bool:
    """Whether a process holds the run's lock. Asking takes it for an instant, so this is not for polling."""
    try:
        with (directory / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _score(directory: Path) -> float | None:
    try:
        scores = [member["score"] for member in read_json(directory / "summary.json")["members"]]
    except (UhmError, KeyError):
        return None
    known = [score for score in scores if score is not None]
    return statistics.mean(known) if known else None
