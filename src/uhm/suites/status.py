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
    now = progress(directory, population.members)
    if other:
        return Status("differs", now.step, now.success, f"was run with {other}")
    if (directory / "summary.json").exists():
        return Status("done", population.steps, _score(directory))
    state = "running" if in_use(directory) else "interrupted"
    return Status(state, now.step, now.success)


def progress(directory: Path, members: int) -> Progress:
    """The last logged step and the mean success of the last evaluation, from the ends of the files alone."""
    metrics = tail(directory / "metrics.jsonl", 1 << 17)
    step = metrics[-1]["step"] if metrics else 0
    # 200 bytes an episode; 50 episodes a member unless the user asks for more.
    episodes = tail(directory / "episodes.jsonl", 1 << 14 | members * 50 * 256)
    latest = [e["success"] for e in episodes if e["step"] == episodes[-1]["step"]]
    return Progress(step, statistics.mean(latest) if latest else None)


def tail(path: Path, size: int) -> list[dict[str, Any]]:
    """The complete JSON lines in the last `size` bytes of a file that may be growing."""
    try:
        with path.open("rb") as file:
            length = file.seek(0, 2)
            file.seek(max(0, length - size))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    whole = lines[1 if length > size else 0 : -1]  # what precedes the first and follows the last line break is torn
    return [json.loads(line) for line in whole if line]


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
