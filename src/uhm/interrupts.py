"""Ctrl-C as a request: work that takes hours ends where it can be resumed. Schedulers send SIGTERM for the same end."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptible(*signals: signal.Signals) -> Iterator[threading.Event]:
    """An event that the first of `signals` sets; whoever sends another does not want to wait: KeyboardInterrupt.

    Only the main thread can listen. Elsewhere the event stays unset, and the main thread is interrupted as usual.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    usual = {number: signal.signal(number, ask) for number in signals}
    try:
        yield asked
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def heed_sigterm() -> None:
    """From now on SIGTERM does what Ctrl-C would just then. For a program, whose signals are its own, not a library."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        usual = signal.getsignal(signal.SIGINT)
        if callable(usual):
            usual(signal.SIGINT, frame)
        else:  # a shell has its background jobs ignore Ctrl-C
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
