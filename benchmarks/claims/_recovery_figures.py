"""What a replayed trace says: figures for programs, tables for people."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.claims._recovery_replay import Replayed, Timed
from benchmarks.claims._recovery_writer import Written
from benchmarks.report import Figure, Table

GRID = "grid"
Times = Mapping[str, Sequence[Timed]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """A part of the claim's report."""

    tables: Sequence[Table]
    figures: Mapping[str, Figure]
    wrong_rows: int


def findings(found: Replayed, title: str, prefix: str) -> Findings:
    """Of one table's replay; its figures begin with ``prefix``."""
    shown = [_recovery_table(found.warm, f"{title}: recovery, ms (its floor)")]
    if found.cold:
        shown.append(_recovery_table(found.cold, f"{title}: recovery with dropped caches, ms (its floor)"))
    return Findings(
        tables=[*shown, _summary(found, f"{title}: in short")],
        figures={prefix + key: value for key, value in _figures(found).items()},
        wrong_rows=found.wrong_rows,
    )


def _figures(found: Replayed) -> dict[str, Figure]:
    """Those of another grid than the default carry its name at their end."""
    named: dict[str, Figure] = {"wrong_rows": found.wrong_rows}
    for name in found.written:
        if name.startswith(GRID):
            ratios = _time_ratios(found.warm, name) | _byte_ratios(found.written, name)
            ratios |= _save_ratios(found.written, name) if name in found.right_after else {}
            ratios |= _rearranging(found.written[name])
            ratios |= {f"cold_{key}": value for key, value in _time_ratios(found.cold, name).items()}
            named |= {key + name.removeprefix(GRID): value for key, value in ratios.items()}
    for name in found.written:
        named |= {f"{name}_{key}": value for key, value in _plain(found, name).items()}
    return named


def _time_ratios(times: Times, name: str) -> dict[str, Figure]:
    """The recovery of one grid against the floor's, against replay, against the differentials."""
    if name not in times:
        return {}
    grid_s, naive_s = _total_s(times[name]), _total_s(times["naive"])
    wanted = sum(one.rows_wanted for one in times[name])
    possible = sum(one.rows_read for one in times["naive"]) / wanted
    ratios: dict[str, Figure] = {
        "grid_over_floor": grid_s / sum(one.floor_s for one in times[name]),
        "naive_over_grid": naive_s / grid_s,
        "naive_rows_over_wanted_rows": possible,
        "naive_over_grid_of_possible": naive_s / grid_s / possible,
        "grid_rows_over_wanted_rows": sum(one.rows_read for one in times[name]) / wanted,
    }
    for key, other in (("differential", "differential_once"), ("intermittent", "intermittent")):
        if other in times:
            ratios[f"grid_over_{key}"] = grid_s / _total_s(times[other])
    return ratios


def _byte_ratios(written: Mapping[str, Written], name: str) -> dict[str, Figure]:
    """What is kept; against replay without the grid's later baselines, which replay does not take."""
    alike = f"{GRID}_no_reset" if name == GRID and f"{GRID}_no_reset" in written else name
    ratios: dict[str, Figure] = {
        "grid_bytes_over_naive_bytes": written[alike].kept_bytes / written["naive"].kept_bytes,
        "grid_bytes_with_its_resets_over_naive_bytes": written[name].kept_bytes / written["naive"].kept_bytes,
    }
    for key, other in (("differential", "intermittent"), ("differential_once", "differential_once")):
        if other in written:
            ratios[f"grid_bytes_over_{key}_bytes"] = written[name].kept_bytes / written[other].kept_bytes
    return ratios


def _save_ratios(written: Mapping[str, Written], name: str) -> dict[str, Figure]:
    """What a save takes, for the loop and until it is durable."""
    grid, naive = written[name], written["naive"]
    return {
        "grid_blocking_over_naive_blocking": _median(grid.blocking_s) / _median(naive.blocking_s),
        "grid_durable_over_naive_durable": _median(grid.durable_s) / _median(naive.durable_s),
        "grid_saves_during_rearrangement_share": grid.counters["saves_beside"] / len(grid.blocking_s),
    }


def _rearranging(grid: Written) -> dict[str, Figure]:
    """What the agent writes beside the deltas: as it counts itself, and all of it as the system counts."""
    beside = grid.agent_bytes - grid.saved_bytes  # later baselines, manifests, catalogs and leases are part of it
    return {
        "rearranged_bytes_over_saved_bytes": grid.counters["written_bytes"] / grid.saved_bytes,
        "grid_written_beside_over_saved_bytes": beside / grid.saved_bytes,
    }


def _plain(found: Replayed, name: str) -> dict[str, Figure]:
    """One strategy by itself."""
    written = found.written[name]
    plain: dict[str, Figure] = {
        "recovery_s": _total_s(found.warm[name]),
        "floor_s": sum(one.floor_s for one in found.warm[name]),
        "blocking_s": _median(written.blocking_s),
        "durable_s": _median(written.durable_s),
        "kept_bytes": written.kept_bytes,
        "saved_bytes": written.saved_bytes,
        "agent_bytes": written.agent_bytes,
        "later_baselines": written.baselines,
    }
    if name in found.cold:
        plain["cold_recovery_s"] = _total_s(found.cold[name])
        plain["cold_floor_s"] = sum(one.floor_s for one in found.cold[name])
    if name in found.right_after:
        plain["recovery_right_after_save_s"] = found.right_after[name].seconds
        plain["rows_right_after_save"] = found.right_after[name].rows_read
    for one in found.warm[name]:
        plain[f"recovery_s_{one.interval:03d}"] = one.seconds
        plain[f"floor_s_{one.interval:03d}"] = one.floor_s
        plain[f"rows_read_{one.interval:03d}"] = one.rows_read
        plain[f"rows_wanted_{one.interval:03d}"] = one.rows_wanted
    return plain | {f"counted_{key}": value for key, value in written.counters.items() if name.startswith(GRID)}


def _recovery_table(times: Times, caption: str) -> Table:
    rows: list[Sequence[Figure]] = [
        (several[0].interval, *(f"{1e3 * one.seconds:.1f} ({1e3 * one.floor_s:.1f})" for one in several))
        for several in zip(*times.values(), strict=True)
    ]
    return Table(caption=caption, headers=("checkpoint", *times), rows=rows)


def _summary(found: Replayed, caption: str) -> Table:
    headers = ("strategy", "recovery / floor", "rows read / wanted", "kept, MB", "wait, ms", "durable, ms", "baselines")
    rows: list[Sequence[Figure]] = []
    for name, written in found.written.items():
        times = found.warm[name]
        wanted = max(1, sum(one.rows_wanted for one in times))
        rows.append(
            (
                name,
                f"{_total_s(times) / sum(one.floor_s for one in times):.2f}",
                f"{sum(one.rows_read for one in times) / wanted:.2f}",
                f"{written.kept_bytes / 1e6:.1f}",
                f"{1e3 * _median(written.blocking_s):.2f}",
                f"{1e3 * _median(written.durable_s):.1f}",
                1 + written.baselines,
            )
        )
    return Table(caption=caption, headers=headers, rows=rows)


def _total_s(several: Sequence[Timed]) -> float:
    return sum(one.seconds for one in several)


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)
