"""Programs compiled side by side, each by a process of its own, into JAX's cache on disk, from where they are loaded.

XLA takes half a minute for an update on a GPU and uses one or two cores. The whole measurement of a GPU has 88 updates,
and what is measured must be in one process, so that programs take turns.
"""

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

# Each process would take most of the GPU's memory for itself.
_SHARED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
_FLAGS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@contextlib.contextmanager
def cache() -> Iterator[str]:
    """The directory of JAX's cache while this lasts: that of `JAX_COMPILATION_CACHE_DIR`, or one that is removed."""
    before = {flag: getattr(jax.config, flag) for flag in _FLAGS}
    with contextlib.ExitStack() as stack:
        directory = before[_FLAGS[0]] or stack.enter_context(tempfile.TemporaryDirectory(prefix="uhm-programs-"))
        try:
            _use(directory, 0)
            yield directory
        finally:
            _use(*before.values())


def each(
    make: Callable[..., Any],
    of: Sequence[tuple[Any, ...]],
    processes: int,
    directory: str,
    report: Callable[[str], None],
) -> list[Any]:
    """What `make` returns for each, in so many processes that fill the cache."""
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(processes, context, _start, (directory,))
    try:
        waiting = [pool.submit(make, *arguments) for arguments in of]
        for done, one in enumerate(concurrent.futures.as_completed(waiting), 1):
            one.result()  # what went wrong is said at once
            report(f"compiling in {processes} processes, {done} of {len(waiting)} done")
    finally:
        # After an interrupt what is under way is waited for, because the directory may be removed then.
        pool.shutdown(wait=True, cancel_futures=True)
    return [one.result() for one in waiting]


def share_memory() -> None:
    """To be said before JAX looks for devices, where other processes are to use the GPU too."""
    for name, value in _SHARED.items():
        os.environ.setdefault(name, value)


def _start(directory: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it decides
    share_memory()
    _use(directory, 0)


def _use(directory: str | None, seconds: float) -> None:
    for flag, value in zip(_FLAGS, (directory, seconds), strict=True):
        jax.config.update(flag, value)
    compilation_cache.reset_cache()  # which otherwise stays where the first program put it
