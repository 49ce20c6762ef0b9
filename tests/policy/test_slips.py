"""Plain values where a policy is wanted."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.policy.slips import meant_by


@pytest.mark.parametrize(
    ("argument", "value", "meant"),
    [
        ("save", 1000, "hf.EverySteps(1000)"),
        ("save", "1000", "hf.EverySteps(1000)"),
        ("save", "1_000 steps", "hf.EverySteps(1000)"),
        ("save", "10m", "hf.EveryMinutes(10)"),
        ("save", "90 s", "hf.EveryMinutes(1.5)"),
        ("save", "1.5 hours", "hf.EveryMinutes(90)"),
        ("save", timedelta(minutes=30), "hf.EveryMinutes(30)"),
        ("save", None, "hf.Never()"),
        ("save", 0, None),
        ("save", True, None),
        ("save", "1.2.3m", None),
        ("save", "often", None),
        ("save", timedelta(0), None),
        ("retention", 3, "hf.KeepLast(3)"),
        ("retention", "all", None),
        ("precision", 4, "hf.Bits(4)"),
        ("precision", 5, None),
        ("overlap", "wait", "hf.Overlap.WAIT"),
        ("overlap", "never", None),
        ("strategy", "full", None),
    ],
)
def test_the_call_that_was_meant_is_named_where_anybody_can_tell(
    argument: str, value: object, meant: str | None
) -> None:
    assert meant_by(argument, value) == meant
