"""Signals that end a job, and what is left of that behind it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.cluster.controller.signals import StopSignals


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


def test_the_first_signal_asks_for_a_stop_and_handlers_are_put_back() -> None:
    stops: list[bool] = []
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals(lambda: stops.append(True)) as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stops == [True] and signals.caught is signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_handler_that_python_cannot_put_back_gives_way_to_the_system_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a library that was loaded before Python, or of a program that embeds it."""
    install = signal.signal

    def install_over_a_foreign_one(number: int, handler: Any) -> None:
        install(number, handler)

    monkeypatch.setattr(signal, "signal", install_over_a_foreign_one)
    with StopSignals(lambda: None):
        pass
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
