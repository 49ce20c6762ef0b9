from __future__ import annotations

import logging
from typing import Any

import pytest

from holdfast.errors import ConfigurationError
from holdfast.events import Happening, Recovery
from holdfast.hooks import EventQueue, Hooks


def recovery(step: int) -> Recovery:
    what = Happening.TOOK_OVER
    return Recovery(
        what=what, step=step, checkpoint_step=step, term=1, at_s=0.0, duration_s=0.0, lost_share=1.0, pls=None
    )


def test_hooks_are_called_when_the_call_is_over_and_in_order() -> None:
    steps: list[int] = []
    queue = EventQueue(Hooks(on_recover=lambda event: steps.append(event.step)))
    with queue:
        queue.tell(recovery(1))
        queue.tell(recovery(2))
        assert steps == []
    assert steps == [1, 2]


def test_hooks_are_called_even_if_the_call_raises() -> None:
    steps: list[int] = []
    queue = EventQueue(Hooks(on_recover=lambda event: steps.append(event.step)))
    with pytest.raises(ValueError, match="of the call"), queue:
        queue.tell(recovery(1))
        raise ValueError("of the call")
    assert steps == [1]


def test_what_a_hook_causes_is_told_after_what_was_there_before() -> None:
    steps: list[int] = []

    def hook(event: Recovery) -> None:
        steps.append(event.step)
        if event.step == 1:
            with queue:
                queue.tell(recovery(3))

    queue = EventQueue(Hooks(on_recover=hook))
    with queue:
        queue.tell(recovery(1))
        queue.tell(recovery(2))
    assert steps == [1, 2, 3]


def test_a_hook_that_raises_is_named_once_and_still_called(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def push_metrics(event: Recovery) -> None:
        calls.append(event.step)
        raise ConnectionError("no gateway")

    queue = EventQueue(Hooks(on_recover=push_metrics))
    with caplog.at_level(logging.WARNING, "holdfast"), queue:
        queue.tell(recovery(1))
        queue.tell(recovery(2))
    assert calls == [1, 2]
    (record,) = caplog.records
    assert "on_recover=" in record.getMessage() and "push_metrics raised" in record.getMessage()
    assert record.exc_info is not None and isinstance(record.exc_info[1], ConnectionError)


def test_ctrl_c_in_a_hook_is_no_error_of_the_hook() -> None:
    def interrupt(event: Recovery) -> None:
        raise KeyboardInterrupt

    queue = EventQueue(Hooks(on_recover=interrupt))
    with pytest.raises(KeyboardInterrupt), queue:
        queue.tell(recovery(1))


async def coroutine(event: Recovery) -> None: ...


@pytest.mark.parametrize("hook", ["metrics", coroutine])
def test_what_cannot_be_called_is_refused_by_its_name(hook: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"on_failure=.*takes one event"):
        Hooks(on_failure=hook)
