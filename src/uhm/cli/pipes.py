"""Standard output and error whose reader may leave (`uhm train ... 2>&1 | head`): that ends no work.

What is written after that goes nowhere, and the command goes on to its own end and exit status. The streams are
replaced, and not each `print` guarded, because rich ends the process as soon as it meets a closed pipe.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO


def outlive_readers() -> None:
    """From now on a closed pipe is silence. For a program, whose streams are its own, not a library."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is not None:  # `2>&-`
            setattr(sys, name, Patient(getattr(sys, name)))


class Patient:
    """A stream like the one it is made of, but for closed pipes."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._outlived():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._outlived():
            self._stream.flush()

    @contextlib.contextmanager
    def _outlived(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())  # also for what is in the stream's buffer still
            os.close(nowhere)
