"""Replays one trace on one table: every strategy saves it, then fresh processes recover its checkpoints in turns."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.claims._recovery_child import Recovery, Request
from benchmarks.claims._recovery_parent import FLOOR, Recoverer, recover_in_turns, started
from benchmarks.claims._recovery_writer import Writer, Written
from benchmarks.claims._trace import Trace
from holdfast.policy import Strategy

_TURN = 10  # intervals


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """How often each recovery is measured; the median counts."""

    warm: int
    cold: int  # with the files dropped from the page cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A checkpoint's recovery above its baseline, and the floor's of the same rows."""

    interval: int
    baseline: int
    seconds: float
    floor_s: float
    rows_read: int
    rows_wanted: int
    bytes_read: int

    @classmethod
    def median(cls, recoveries: Sequence[Recovery], floors: Sequence[Recovery]) -> Timed:
        """Of the repeats of one recovery."""
        one = recoveries[0]
        return cls(
            interval=one.interval,
            baseline=one.baseline,
            seconds=statistics.median(recovery.seconds for recovery in recoveries),
            floor_s=statistics.median(recovery.seconds for recovery in floors),
            rows_read=one.rows_read,
            rows_wanted=floors[0].rows_read,
            bytes_read=one.bytes_read,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What was found, by strategy."""

    written: Mapping[str, Written]
    warm: Mapping[str, Sequence[Timed]]
    cold: Mapping[str, Sequence[Timed]]  # empty where it was not asked for
    right_after: Mapping[str, Recovery]  # the newest checkpoint, recovered as soon as it was committed
    wrong_rows: int  # over every recovery that was made


def replay(
    trace: Trace,
    strategies: Mapping[str, Strategy],
    folder: Path,
    *,
    every: int,
    repeats: Repeats,
    rivals: Collection[str] = (),
) -> Replayed:
    """Save the trace with each strategy below ``folder`` and recover every so many of its checkpoints.

    The ``rivals`` are those whose saves are compared: they take turns, and nothing else is at work meanwhile.
    """
    trace.save(trace_file := folder / "trace.npz")
    folders = {name: folder / name for name in (*strategies, FLOOR)}
    recovered = sorted({*range(every, trace.intervals + 1, every), trace.intervals})
    with started(folders, trace_file) as recoverers:
        others = _write_others(trace, {name: s for name, s in strategies.items() if name not in rivals}, folder)
        for recoverer in recoverers.values():
            recoverer.wait_until_ready()
        floor = recoverers.pop(FLOOR)
        writers = {name: Writer(s, folder / name, trace) for name, s in strategies.items() if name in rivals}
        compared, right_after = _write_in_turns(trace, writers, recoverers)
        with ThreadPoolExecutor() as pool:  # what is loaded or compiled at first use
            list(pool.map(lambda one: one.recover(Request(interval=recovered[0])), (*recoverers.values(), floor)))
        warm = [_round(recoverers, floor, interval, repeats.warm, cold=False) for interval in recovered]
        cold = [_round(recoverers, floor, interval, repeats.cold, cold=True) for interval in recovered if repeats.cold]
        return Replayed(
            written=compared | others,
            warm=_by_name(warm),
            cold=_by_name(cold),
            right_after=right_after,
            wrong_rows=sum(recoverer.wrong_rows for recoverer in (*recoverers.values(), floor)),
        )


def _write_others(trace: Trace, strategies: Mapping[str, Strategy], folder: Path) -> dict[str, Written]:
    """Save with those whose saves are not compared: two at a time, beside whatever else goes on."""

    def write(name: str) -> Written:
        writer = Writer(strategies[name], folder / name, trace)
        writer.advance(trace.intervals - 1)
        writer.save_last()
        return writer.close()

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(strategies, pool.map(write, strategies), strict=True))


def _write_in_turns(
    trace: Trace, writers: Mapping[str, Writer], recoverers: Mapping[str, Recoverer]
) -> tuple[dict[str, Written], dict[str, Recovery]]:
    """Save in turns, each begun when the other's agent is done with everything; the last save is recovered at once."""
    for start in range(0, trace.intervals - 1, _TURN):
        for writer in writers.values():
            writer.advance(min(_TURN, trace.intervals - 1 - start))
            writer.settle()
    written, right_after = {}, {}
    for name, writer in writers.items():
        for _ in range(2):  # what is loaded at first use, and all files but the last ones
            recoverers[name].recover(Request(interval=trace.intervals - 1))
        writer.save_last()
        right_after[name] = recoverers[name].recover(Request(interval=trace.intervals))
        written[name] = writer.close()
    return written, right_after


def _round(
    recoverers: Mapping[str, Recoverer], floor: Recoverer, interval: int, repeats: int, *, cold: bool
) -> dict[str, Timed]:
    """Recover one checkpoint with everybody in turns, after a turn that only warms the page cache."""
    request = Request(interval=interval, cold=cold)
    baselines = {name: recovery.baseline for name, recovery in recover_in_turns(recoverers, request).items()}
    floors = {baseline: Request(interval=interval, baseline=baseline, cold=cold) for baseline in baselines.values()}
    for floor_request in floors.values():
        floor.recover(floor_request)
    turns = [
        (
            recover_in_turns(recoverers, request),
            {baseline: floor.recover(floor_request) for baseline, floor_request in floors.items()},
        )
        for _ in range(repeats)
    ]
    return {
        name: Timed.median([found[name] for found, _ in turns], [floors[baseline] for _, floors in turns])
        for name, baseline in baselines.items()
    }


def _by_name(rounds: Iterable[Mapping[str, Timed]]) -> dict[str, list[Timed]]:
    found: dict[str, list[Timed]] = {}
    for timed in rounds:
        for name, one in timed.items():
            found.setdefault(name, []).append(one)
    return found
