"""Records of jobs that never ran."""

from __future__ import annotations

from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.happenings import (
    Committed,
    Died,
    Ended,
    LadderChosen,
    LostSamples,
    Paused,
    Recovered,
    Redundant,
    Replaced,
    Resized,
    ResizeFailed,
    SaveFailed,
    SpareFailed,
    Started,
    WentBack,
)
from holdfast.cluster.record import JobRecord, Speed

BEGAN_S = 1767225600.0  # 2026-01-01, midnight, UTC
SERVER, HEIR = Member(Role.SERVER, 1, 1), Member(Role.SERVER, 1, 2)
WORKER, SUCCESSOR = Member(Role.WORKER, 0, 1), Member(Role.WORKER, 0, 2)


def story(term: int = 1) -> JobRecord:
    """Everything that can happen, once."""
    at_s = BEGAN_S + 600 * term
    return JobRecord(
        term=term,
        servers=3,
        workers=2,
        synchronous=False,
        events=(
            LadderChosen(rungs="parity (2 + 1) → partial → full", why="parity of 2 + 1 takes 1 GB", at_s=at_s - 3),
            Started(at_s=at_s, took_s=2.5),
            Paused(save=1, step=100, pause_s=0.25, at_s=at_s + 4),
            Committed(save=1, checkpoint="s000000000100-t00001-00000005", step=100, at_s=at_s + 5),
            Died(member=SERVER, how="killed by SIGKILL", at_s=at_s + 6),
            Replaced(member=HEIR, by_spare=True, at_s=at_s + 7, took_s=1.0),
            Redundant(records=250, at_s=at_s + 7.5, took_s=1.5),
            LostSamples(member=HEIR, steps=30, pls=0.0125, at_s=at_s + 8),
            Recovered(
                member=HEIR,
                rung="partial",
                rows=900,
                saved_rows=100,
                at_s=at_s + 7,
                took_s=1.0,
                lost_steps=30,
                lost_samples=7680.0,
                lost_pls=0.0125,
            ),
            Died(member=WORKER, how="killed by SIGKILL", at_s=at_s + 9),
            Replaced(member=SUCCESSOR, by_spare=False, at_s=at_s + 12, took_s=3.0),
            SaveFailed(save=2, problem="no space left", at_s=at_s + 13),
            Died(member=HEIR, how="was not heard from for too long", at_s=at_s + 14),
            WentBack(checkpoint="s000000000100-t00001-00000005", lost_steps=80, at_s=at_s + 14),
            SpareFailed(spares=0, problem="no memory is left", at_s=at_s + 15),
            Resized(workers=2, before=1, at_s=at_s + 16, took_s=1.5),
            ResizeFailed(workers=3, problem="no space left", at_s=at_s + 17),
            Ended(problem="", at_s=at_s + 20),
        ),
        speeds=tuple(
            Speed(at_s=at_s + each, step=25 * each, samples_per_s=6400.0 if each != 7 else 0.0, rows_per_s=9000.0)
            for each in range(1, 20)
        ),
    )
