"""What became of a save is known in one place, and whoever keeps account of saves sees all of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast.checkpoint.trainer.outcomes import Outcomes
from holdfast.checkpoint.wire.state_digests import PieceDigest
from holdfast.errors import ModelMismatch
from holdfast.events import SaveCommitted, SaveGivenUp, TrainingEvent
from holdfast.format.catalog import Intent
from holdfast.types import CheckpointInfo, Kind

DIGESTS = (PieceDigest(tensor=1, start=0, length=4, digest="d"),)


class Diary:
    """Writes down what it sees."""

    def __init__(self, seen: list[str], name: str, refuses: Exception | None = None) -> None:
        self.seen = seen
        self.name = name
        self.refuses = refuses
        self.digests: Sequence[PieceDigest] = ()

    def begin(self, kind: Kind) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.seen.append(f"{self.name} begins {kind.value}")

    def committed(self, kind: Kind, state: Sequence[PieceDigest]) -> None:
        self.digests = state
        self.seen.append(f"{self.name} commits {kind.value}")

    def failed(self, kind: Kind) -> None:
        self.seen.append(f"{self.name} fails {kind.value}")


@pytest.fixture
def seen() -> list[str]:
    return []


@pytest.fixture
def events() -> list[TrainingEvent]:
    return []


@pytest.fixture
def outcomes(seen: list[str], events: list[TrainingEvent]) -> Outcomes:
    return Outcomes([Diary(seen, "a"), Diary(seen, "b")], tell=events.append)


def intent(step: int = 5, kind: Kind = Kind.FULL) -> Intent:
    return Intent(
        checkpoint=f"c{step}",
        step=step,
        term=1,
        kind=kind,
        parent=None,
        base=None,
        world=1,
        created_s=0.0,
        overlap="skip",
    )


def info(step: int = 5, kind: Kind = Kind.FULL) -> CheckpointInfo:
    return CheckpointInfo(
        id=f"c{step}",
        step=step,
        term=1,
        kind=kind,
        parent=None,
        base=None,
        created_s=0.0,
        size_bytes=100,
        full_bytes=100,
        rows_written=3,
        stall_s=0.0,
    )


def test_every_observer_sees_a_save_begin_and_commit(outcomes: Outcomes, seen: list[str]) -> None:
    outcomes.begin(intent())
    assert outcomes.in_flight is not None
    outcomes.committed(info(), DIGESTS)
    assert seen == ["a begins full", "b begins full", "a commits full", "b commits full"]
    assert outcomes.in_flight is None and outcomes.position.checkpoint == "c5" and outcomes.stats.committed == 1


def test_every_observer_sees_a_save_fail_and_the_next_one_succeed(
    outcomes: Outcomes, seen: list[str], events: list[TrainingEvent]
) -> None:
    outcomes.begin(intent())
    outcomes.give_up("the disk is on fire")
    assert seen[2:] == ["a fails full", "b fails full"]
    assert outcomes.failed and outcomes.failure is not None and "the disk is on fire" in outcomes.failure
    assert not outcomes.may_retry()
    outcomes.begin(intent(6))
    outcomes.committed(info(6))
    assert outcomes.failure is None and not outcomes.failed and outcomes.may_retry()
    assert [type(event) for event in events] == [SaveGivenUp, SaveCommitted]


def test_an_observer_that_refuses_a_save_leaves_none_under_way(seen: list[str]) -> None:
    refusing = Diary(seen, "b", refuses=ModelMismatch("another table"))
    outcomes = Outcomes([Diary(seen, "a"), refusing, Diary(seen, "c")], tell=lambda event: None)
    with pytest.raises(ModelMismatch, match="another table"):
        outcomes.begin(intent())
    assert outcomes.in_flight is None and not outcomes.failed
    assert seen == ["a begins full", "a fails full"]


def test_what_is_due_meanwhile_is_counted_once_for_each_save(outcomes: Outcomes) -> None:
    for step in (5, 6):
        outcomes.begin(intent(step))
        assert [outcomes.skip(), outcomes.skip(), outcomes.delay_rows(), outcomes.delay_rows()] == [True, False] * 2
        outcomes.committed(info(step))
    assert outcomes.stats.skipped == outcomes.stats.priority_late == 2


def test_rows_that_a_checkpoint_called_off_have_not_failed(outcomes: Outcomes, events: list[TrainingEvent]) -> None:
    outcomes.begin(intent(kind=Kind.PRIORITY))
    outcomes.call_off()
    outcomes.give_up("cancelled")
    assert not outcomes.failed and outcomes.stats.priority_failed == 0 and not events


def test_a_checkpoint_that_was_called_off_has_failed(outcomes: Outcomes) -> None:
    outcomes.begin(intent())
    outcomes.call_off()
    outcomes.give_up("cancelled")
    assert outcomes.failed and outcomes.stats.failed == 1


def test_rows_between_checkpoints_move_no_position(outcomes: Outcomes) -> None:
    outcomes.begin(intent())
    outcomes.committed(info())
    outcomes.begin(intent(6, Kind.PRIORITY))
    outcomes.committed(info(6, Kind.PRIORITY))
    assert outcomes.position.checkpoint == "c5" and outcomes.stats.priority_saves == 1 and outcomes.stats.committed == 1


def test_the_first_problem_of_a_save_is_remembered_while_others_are_asked(outcomes: Outcomes) -> None:
    outcomes.begin(intent())
    outcomes.ask("the store did not answer")
    outcomes.ask()
    assert outcomes.in_flight is not None
    assert outcomes.in_flight.asked and outcomes.in_flight.problem == "the store did not answer"
    assert outcomes.awaited("c5") is outcomes.in_flight and outcomes.awaited("c4") is None


def test_a_run_that_dropped_the_base_gets_a_new_baseline(outcomes: Outcomes) -> None:
    outcomes.begin(intent())
    outcomes.committed(info())
    outcomes.drop_baseline()
    assert outcomes.position.baseline is None and outcomes.position.checkpoint == "c5"
