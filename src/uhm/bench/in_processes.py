"""Programs compiled side by side, each by a process of its own; one process loads and measures them.

XLA takes half a minute for an update on a GPU, and one to two minutes of processor time. The whole measurement of a GPU
has 88 updates, and what is measured must be in one process, so that programs take turns. Tracing takes seconds too, so
what travels is what was compiled (`uhm.bench.subject.Program`).
"""

import concurrent.futures
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

# Each process would take most of the GPU's memory for itself.
_SHARED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def each(
    make: Callable[..., Any],
    of: Sequence[tuple[Any, ...]],
    processes: int,
    report: Callable[[str], None],
    meanwhile: Callable[[Any], None] = lambda _: None,
) -> list[Any]:
    """What `make` returns for each, in so many processes; `meanwhile` is done here with one while others are made."""
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(processes, context, _start)
    try:
        waiting = [pool.submit(make, *arguments) for arguments in of]
        for done, one in enumerate(concurrent.futures.as_completed(waiting), 1):
            meanwhile(one.result())  # what went wrong is said at once
            report(f"compiling in {processes} processes, {done} of {len(waiting)} done")
    finally:
        # After an interrupt too, processes end when they are done with what is under way.
        pool.shutdown(wait=True, cancel_futures=True)
    return [one.result() for one in waiting]


def share_memory() -> None:
    """To be said before JAX looks for devices, where other processes are to use the GPU too."""
    for name, value in _SHARED.items():
        os.environ.setdefault(name, value)


def _start() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it decides
    share_memory()
