"""The one exception a user is meant to see: a single line that says what is wrong and what to do about it.

`UhmError` is raised for bad input only. The command line prints its message without a traceback and exits with
status 2; a bug keeps its traceback.
"""

import contextlib
import difflib
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path


class UhmError(Exception):
    """Bad input. The message is one line: what is wrong, where, and what to do."""


def unknown(kind: str, name: str, known: Iterable[str], hint: str = "") -> UhmError:
    """The error for a name nobody knows: it answers with the closest names."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    guess = f" Did you mean {' or '.join(close)}?" if close else ""
    return UhmError(f"unknown {kind} '{name}'.{guess}{' ' + hint if hint else ''}")


@contextlib.contextmanager
def writing(path: Path, hint: str = "") -> Iterator[None]:
    """A full disk or a missing permission is the user's to solve, so it gets one line instead of a traceback."""
    try:
        yield
    except OSError as error:
        raise UhmError(f"cannot write {path}: {error.strerror or error}{'; ' + hint if hint else ''}.") from error


def with_place(error: Exception) -> str:
    """An error of somebody else's code in one line: what it is and where it was raised."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    reason = " ".join(str(error).split())
    return f"{type(error).__name__}: {reason} ({Path(at.filename).name}, line {at.lineno})"
