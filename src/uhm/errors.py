"""The one exception a user is meant to see: a single line that says what is wrong and what to do about it.

`UhmError` is raised for bad input only. The command line prints its message without a traceback and exits with
status 2; a bug keeps its traceback.
"""

import difflib
from collections.abc import Iterable


class UhmError(Exception):
    """Bad input. The message is one line: what is wrong, where, and what to do."""


def unknown(kind: str, name: str, known: Iterable[str], hint: str = "") -> UhmError:
    """The error for a name nobody knows: it answers with the closest names."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    guess = f" Did you mean {' or '.join(close)}?" if close else ""
    return UhmError(f"unknown {kind} '{name}'.{guess}{' ' + hint if hint else ''}")
