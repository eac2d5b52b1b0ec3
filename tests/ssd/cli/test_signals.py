import signal

import pytest

from ssd.cli.signals import StopRequested, deferred, stop_on_signals, uninterrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_asks_to_stop(number: signal.Signals) -> None:
    with pytest.raises(StopRequested), stop_on_signals():
        signal.raise_signal(number)


def test_a_deferred_signal_is_raised_when_the_block_is_done() -> None:
    done = False
    with stop_on_signals(), pytest.raises(StopRequested), deferred():
        signal.raise_signal(signal.SIGTERM)
        done = True
    assert done


def test_nothing_is_raised_when_no_signal_came() -> None:
    with stop_on_signals(), deferred():
        pass


def test_an_orderly_end_is_not_interrupted() -> None:
    with stop_on_signals(), uninterrupted():
        signal.raise_signal(signal.SIGINT)


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with stop_on_signals(), deferred():
        pass
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
