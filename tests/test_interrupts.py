"""What the first and the second signal do."""

import signal
import threading

import pytest

from uhm.interrupts import heed_sigterm, interruptible

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("second", BOTH)
@pytest.mark.parametrize("first", BOTH)
def test_the_first_asks_and_the_second_interrupts(first: signal.Signals, second: signal.Signals) -> None:
    before = [signal.getsignal(number) for number in BOTH]
    with pytest.raises(KeyboardInterrupt), interruptible(*BOTH) as asked:
        assert not asked.is_set()
        signal.raise_signal(first)
        assert asked.is_set()
        signal.raise_signal(second)
        pytest.fail("it went on")
    assert [signal.getsignal(number) for number in BOTH] == before


def test_other_signals_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with interruptible(signal.SIGINT):
        assert signal.getsignal(signal.SIGTERM) is before
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler


def test_another_thread_asks_for_nothing() -> None:
    seen = []

    def listen() -> None:
        with interruptible(*BOTH) as asked:
            seen.append((signal.getsignal(signal.SIGINT), asked.is_set()))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert seen == [(signal.getsignal(signal.SIGINT), False)]


@pytest.fixture
def usual_signals():
    before = {number: signal.getsignal(number) for number in BOTH}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("ctrl_c", [signal.default_int_handler, signal.SIG_IGN, signal.SIG_DFL])
def test_sigterm_interrupts_even_where_ctrl_c_is_ignored(ctrl_c) -> None:
    signal.signal(signal.SIGINT, ctrl_c)
    heed_sigterm()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.usefixtures("usual_signals")
def test_sigterm_asks_where_ctrl_c_asks() -> None:
    heed_sigterm()
    with pytest.raises(KeyboardInterrupt), interruptible(signal.SIGINT) as asked:
        signal.raise_signal(signal.SIGTERM)
        assert asked.is_set()
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("it went on")
