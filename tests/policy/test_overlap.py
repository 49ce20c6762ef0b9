"""What becomes of a save under way when another one is due: every case there is."""

from __future__ import annotations

from itertools import product

import pytest

from holdfast.policy import Overlap
from holdfast.policy.overlap import Before, OverlapContext, before_save

BOTH = (False, True)


def cases(**fixed: object) -> list[OverlapContext]:
    """All contexts with these values."""
    found = []
    for overlap, rows, under_way, its_rows, forced, retry in product(Overlap, BOTH, BOTH, BOTH, BOTH, BOTH):
        context = OverlapContext(
            overlap=overlap,
            rows_only=rows,
            under_way=under_way,
            under_way_rows_only=under_way and its_rows,
            is_forced=forced,
            may_retry=retry,
        )
        if all(getattr(context, name) == value for name, value in fixed.items()) and context not in found:
            found.append(context)
    return found


def decisions(**fixed: object) -> set[Before]:
    return {before_save(context) for context in cases(**fixed)}


def test_a_checkpoint_that_is_forced_is_taken_whatever_happens() -> None:
    assert Before.SKIP not in decisions(rows_only=False, is_forced=True)


def test_a_forced_checkpoint_waits_for_another_one_under_way() -> None:
    assert decisions(rows_only=False, is_forced=True, under_way=True, under_way_rows_only=False) == {Before.AWAIT}


def test_rows_under_way_give_way_to_a_checkpoint() -> None:
    assert decisions(rows_only=False, under_way=True, under_way_rows_only=True) == {Before.CANCEL}


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [(Overlap.WAIT, Before.AWAIT), (Overlap.SKIP, Before.SKIP), (Overlap.CANCEL, Before.CANCEL)],
)
def test_a_checkpoint_does_to_another_one_what_was_chosen(overlap: Overlap, expected: Before) -> None:
    fixed = {"rows_only": False, "under_way": True, "under_way_rows_only": False, "is_forced": False}
    assert decisions(overlap=overlap, may_retry=True, **fixed) == {expected}


def test_after_a_failure_nothing_is_tried_before_the_pause_is_over_unless_it_is_forced() -> None:
    assert decisions(rows_only=False, under_way=False, is_forced=False, may_retry=False) == {Before.SKIP}
    assert decisions(rows_only=True, may_retry=False) == {Before.SKIP}


def test_rows_never_cancel_anything_and_wait_only_where_waiting_was_chosen() -> None:
    assert Before.CANCEL not in decisions(rows_only=True)
    assert decisions(rows_only=True, may_retry=True, under_way=True, overlap=Overlap.WAIT) == {Before.AWAIT}
    assert decisions(rows_only=True, may_retry=True, under_way=True, overlap=Overlap.SKIP) == {Before.SKIP}
    assert decisions(rows_only=True, may_retry=True, under_way=False) == {Before.AWAIT}
