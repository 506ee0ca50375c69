"""`uhm bench update` and benchmarks/growth.py take turns on a machine: many may compile at once, who measures is alone.

So the programs of a long table can be compiled by several processes side by side; each then waits for the others
before it looks at the clock. Anything else can keep them waiting too: `flock --shared` on the file that `path` names.
"""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def path() -> Path:
    """The file that is locked; every user has one."""
    return Path(tempfile.gettempdir()) / f"uhm-bench-{os.getuid()}.lock"


@contextlib.contextmanager
def preparing() -> Iterator[None]:
    """While nobody measures, and beside others that prepare."""
    with _locked(fcntl.LOCK_SH):
        yield


@contextlib.contextmanager
def measuring() -> Iterator[None]:
    """While nobody else measures or prepares."""
    with _locked(fcntl.LOCK_EX):
        yield


@contextlib.contextmanager
def _locked(kind: int) -> Iterator[None]:
    with path().open("a") as file:
        fcntl.flock(file, kind)
        yield
