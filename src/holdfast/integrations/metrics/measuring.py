"""Events as measurements: pure, and the same for every backend."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.cluster import happenings
from holdfast.events import Happening, Recovery, SaveCommitted, SaveGivenUp, SnapshotTaken, TrainingEvent
from holdfast.integrations.metrics import instruments as of
from holdfast.integrations.metrics.instruments import Measurement

_RUNGS = {
    Happening.TOOK_OVER: "checkpoint",
    Happening.WENT_BACK: "checkpoint, without a restart",
    Happening.RECOVERED_PART: "newest rows",
}


def measured(event: TrainingEvent | happenings.Event) -> Iterator[Measurement]:
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
            yield from _recovered(event)
        case _:
            yield from _of_cluster(event)


def _committed(event: SaveCommitted) -> Iterator[Measurement]:
    info, labels = event.info, {"kind": event.info.kind.value}
    yield Measurement(instrument=of.COMMITS, value=1, labels=labels, step=info.step)
    yield Measurement(instrument=of.BYTES, value=info.size_bytes, labels=labels, step=info.step)
    yield Measurement(instrument=of.COMMITTED_AT, value=event.at_s, step=info.step)
    yield Measurement(instrument=of.COMMITTED_STEP, value=info.step, step=info.step)
    if info.duration_s is not None:
        yield Measurement(instrument=of.COMMIT, value=info.duration_s, step=info.step)
    for name, value in info.metrics.items():
        yield Measurement(instrument=of.METRIC, value=value, labels={"name": name}, step=info.step)


def _recovered(event: Recovery) -> Iterator[Measurement]:
    rung = _RUNGS.get(event.what, event.what.value)
    yield Measurement(instrument=of.RECOVERIES, value=1, labels={"rung": rung}, step=event.step)
    yield Measurement(instrument=of.RECOVERY, value=event.duration_s, step=event.step)
    if event.pls is not None:
        yield Measurement(instrument=of.PLS, value=event.pls, step=event.step)


def _of_cluster(event: happenings.Event) -> Iterator[Measurement]:
    match event:
        case happenings.Died():
            yield Measurement(instrument=of.DEATHS, value=1, labels={"role": event.member.role.value})
        case happenings.Replaced():
            yield Measurement(instrument=of.REPLACEMENT, value=event.took_s)
        case happenings.WentBack():
            yield Measurement(instrument=of.RECOVERIES, value=1, labels={"rung": _RUNGS[Happening.WENT_BACK]})
            yield Measurement(instrument=of.LOST_STEPS, value=event.lost_steps)
        case happenings.LostSamples():
            yield Measurement(instrument=of.RECOVERIES, value=1, labels={"rung": _RUNGS[Happening.RECOVERED_PART]})
            if event.pls is not None:
                yield Measurement(instrument=of.PLS, value=event.pls)
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
