"""SIGTERM when no step is left to see it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

import holdfast as hf
from holdfast.events import SaveCommitted
from holdfast.storage import MemoryStore
from tests.tiny import build, train_step


@pytest.fixture(autouse=True)
def caught() -> Iterator[list[int]]:
    """Signals that reach the program's own handler."""
    numbers: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGTERM, before)


def test_sigterm_after_the_last_step_ends_the_program_once_all_is_saved(caught: list[int]) -> None:
    store, after = MemoryStore(), []
    model, optimizers = build()
    with pytest.raises(hf.Terminated) as end:
        with hf.Checkpointer(store, model=model, optimizer=optimizers) as guard:
            guard.step(loss=train_step(model, optimizers, 0))
            signal.raise_signal(signal.SIGTERM)
        after.append("the program went on")
    assert end.value.code == hf.Terminated.EXIT_CODE and after == []
    assert [info.step for info in hf.open_run(store).checkpoints()] == [1]
    signal.raise_signal(signal.SIGTERM)
    assert caught == [signal.SIGTERM]  # the second one alone: the handler was given back


def test_sigterm_while_the_last_save_is_written_ends_the_program_after_it() -> None:
    def interrupt(event: SaveCommitted) -> None:
        signal.raise_signal(signal.SIGTERM)

    store = MemoryStore()
    model, optimizers = build()
    guard = hf.Checkpointer(store, model=model, optimizer=optimizers, on_commit=interrupt)
    with pytest.raises(hf.Terminated), guard:
        guard.step(loss=train_step(model, optimizers, 0))
    assert [info.step for info in hf.open_run(store).checkpoints()] == [1]


def test_an_error_is_not_hidden_by_a_signal() -> None:
    model, optimizers = build()
    guard = hf.Checkpointer(MemoryStore(), model=model, optimizer=optimizers)
    with pytest.raises(ZeroDivisionError), guard:
        guard.step(loss=train_step(model, optimizers, 0))
        signal.raise_signal(signal.SIGTERM)
        raise ZeroDivisionError
