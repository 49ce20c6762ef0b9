"""Events as measurements: pure, and the same for every backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from holdfast.cluster import happenings
from holdfast.cluster.core.members import Role
from holdfast.cluster.happenings import FULL, PARTIAL
from holdfast.cluster.progress import Progress
from holdfast.events import Happening, Recovery, SaveCommitted, SaveGivenUp, SnapshotTaken, TrainingEvent
from holdfast.integrations.metrics import instruments as of
from holdfast.integrations.metrics.instruments import Instrument, Measurement

Measurable: TypeAlias = TrainingEvent | happenings.Event | Progress

_RUNGS = {Happening.TOOK_OVER: "restart", Happening.WENT_BACK: FULL, Happening.RECOVERED_PART: PARTIAL}


def measured(event: Measurable) -> Iterator[Measurement]:
    """What an event says, of a Checkpointer's training or of a cluster; nothing for those that say no number."""
    match event:
        case SnapshotTaken():
            yield Measurement(instrument=of.SAVES, value=1, labels={"kind": event.kind.value}, step=event.step)
            yield Measurement(instrument=of.STALL, value=event.stall_s, step=event.step)
        case SaveCommitted():
            yield from _committed(event)
        case SaveGivenUp():
            yield Measurement(instrument=of.FAILURES, value=1, step=event.step)
        case Recovery():
            rung = _RUNGS.get(event.what, event.what.value)
            yield from _recovered(rung, event.duration_s, step=event.step)
            yield from _known(of.PLS, event.pls, step=event.step)
        case Progress():
            yield from _went(event)
        case _:
            yield from _of_cluster(event)


def _known(instrument: Instrument, value: float | None, *, step: int | None = None) -> Iterator[Measurement]:
    if value is not None:
        yield Measurement(instrument=instrument, value=value, step=step)


def _committed(event: SaveCommitted) -> Iterator[Measurement]:
    info, labels = event.info, {"kind": event.info.kind.value}
    yield Measurement(instrument=of.COMMITS, value=1, labels=labels, step=info.step)
    yield Measurement(instrument=of.BYTES, value=info.size_bytes, labels=labels, step=info.step)
    yield Measurement(instrument=of.COMMITTED_AT, value=event.at_s, step=info.step)
    yield Measurement(instrument=of.COMMITTED_STEP, value=info.step, step=info.step)
    yield from _known(of.COMMIT, info.duration_s, step=info.step)
    for name, value in info.metrics.items():
        yield Measurement(instrument=of.METRIC, value=value, labels={"name": name}, step=info.step)


def _recovered(rung: str, took_s: float, *, step: int | None = None) -> Iterator[Measurement]:
    for instrument, value in ((of.RECOVERIES, 1.0), (of.RECOVERY, took_s)):
        yield Measurement(instrument=instrument, value=value, labels={"rung": rung}, step=step)


def _went(event: Progress) -> Iterator[Measurement]:
    found: dict[Instrument, float | None] = {
        of.STEP: event.step,
        of.SAMPLES: event.samples_per_s,
        of.ROWS: event.rows_per_s,
        of.BEHIND: event.behind,
        of.LOSS: event.loss,
        of.PLS: event.pls,
    }
    for instrument, value in found.items():
        yield from _known(instrument, value, step=event.step)


def _of_cluster(event: happenings.Event) -> Iterator[Measurement]:
    match event:
        case happenings.Died():
            yield Measurement(instrument=of.DEATHS, value=1, labels={"role": event.member.role.value})
            if event.member.role is Role.SERVER:
                yield Measurement(instrument=of.REDUNDANT, value=0)
        case happenings.Replaced():
            yield Measurement(instrument=of.REPLACEMENT, value=event.took_s)
        case happenings.Recovered():
            yield from _made_up_for(event)
        case happenings.Redundant():
            yield Measurement(instrument=of.REDUNDANT, value=1)
            yield Measurement(instrument=of.REDUNDANCY, value=event.took_s)
        case happenings.WentBack():
            yield Measurement(instrument=of.LOST_STEPS, value=event.lost_steps)
        case happenings.LostSamples():
            yield from _known(of.PLS, event.pls)
        case happenings.Paused():
            yield Measurement(instrument=of.PAUSE, value=event.pause_s, step=event.step)
        case happenings.Committed():
            yield Measurement(instrument=of.COMMITS, value=1, labels={"kind": "cluster"}, step=event.step)
            yield Measurement(instrument=of.COMMITTED_AT, value=event.at_s, step=event.step)
            yield Measurement(instrument=of.COMMITTED_STEP, value=event.step, step=event.step)
        case happenings.SaveFailed():
            yield Measurement(instrument=of.FAILURES, value=1)
        case happenings.Resized():
            yield Measurement(instrument=of.WORKERS, value=event.workers)
        case _:
            return


def _made_up_for(event: happenings.Recovered) -> Iterator[Measurement]:
    yield from _recovered(event.rung, event.took_s)
    for source, rows in (("parity", event.rows), ("saves", event.saved_rows)):
        yield Measurement(instrument=of.RECOVERED_ROWS, value=rows, labels={"source": source})
    yield from _known(of.LOST_SAMPLES, event.lost_samples)
