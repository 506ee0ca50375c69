"""Output for those who do not watch, in a pipe or a job's log: a line for every tenth, and tables of any width."""

import datetime
import sys
import time
from collections.abc import Callable
from typing import Any

_WIDE = 1000
Tell = Callable[[int, str], None]  # how much is done, and what else there is to say


def console() -> Any:
    """Where tables are printed: as wide as the terminal, or as they want to be where there is none to fit."""
    from rich.console import Console

    found = Console()
    return found if found.is_terminal else Console(width=_WIDE)


def tenths(label: str, unit: str, total: int, done: int) -> Tell:
    """A function that is told of all progress and prints a line whenever another tenth of `total` is done.

    The time left is counted from its first call on: what comes before, such as compiling, is not done again.
    """
    first: tuple[int, float] | None = None
    tenth = 10 * done // total

    def tell(done: int, more: str) -> None:
        nonlocal first, tenth
        now = time.monotonic()
        first = first or (done, now)
        if 10 * done // total > tenth:
            tenth = 10 * done // total
            left = (total - done) * (now - first[1]) / (done - first[0]) if done > first[0] else None
            when = "" if left is None or done == total else f", {datetime.timedelta(seconds=round(left))} left"
            print(f"{label}: {unit} {done:,} of {total:,}{when}  {more}".rstrip(), file=sys.stderr, flush=True)

    return tell
