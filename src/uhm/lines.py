"""Progress for those who do not watch: a line for every tenth, where standard error is a pipe or a job's log."""

import datetime
import sys
import time
from collections.abc import Callable

Tell = Callable[[int, str], None]  # how much is done, and what else there is to say


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
