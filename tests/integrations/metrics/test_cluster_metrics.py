"""What happens to a cluster, and how it goes, as metrics."""

from __future__ import annotations

from typing import Any

from holdfast.cluster import happenings
from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.happenings import PARITY, Died, LostSamples, Recovered, Redundant, Replaced, Started, WentBack
from holdfast.cluster.progress import Progress
from tests.integrations.metrics.kept import Kept

SERVER = Member(Role.SERVER, 1, 2)


def recorded(*events: Any) -> Kept:
    exporter = Kept()
    for event in events:
        exporter.record(event)
    return exporter


def test_deaths_replacements_and_lost_samples_are_measured() -> None:
    exporter = recorded(
        Died(member=SERVER, how="killed", at_s=1.0),
        Replaced(member=SERVER, by_spare=True, at_s=2.0, took_s=1.0),
        LostSamples(member=SERVER, steps=3, pls=0.02, at_s=2.0),
        WentBack(checkpoint="", lost_steps=7, at_s=2.0),
        Started(at_s=0.0, took_s=1.0),  # says nothing that is measured
    )
    names = [each.instrument.name for each in exporter.kept]
    assert names == ["deaths", "redundant", "replacement_seconds", "pls", "lost_steps"]
    assert exporter.last("deaths").labels == {"role": "server"}


def test_a_recovery_counts_once_and_tells_its_rung_and_where_rows_came_from() -> None:
    recovery = Recovered(
        member=SERVER, rung=PARITY, rows=90, saved_rows=10, at_s=3.0, took_s=0.5, lost_steps=2, lost_samples=64.0
    )
    exporter = recorded(LostSamples(member=SERVER, steps=3, pls=None, at_s=2.0), recovery)
    (count,), (took,) = exporter.of("recoveries"), exporter.of("recovery_seconds")
    assert (count.value, count.labels, took.value, took.labels) == (1, {"rung": "parity"}, 0.5, {"rung": "parity"})
    rows = {each.labels["source"]: each.value for each in exporter.of("recovered_rows")}
    assert rows == {"parity": 90, "saves": 10}
    assert exporter.total("lost_samples") == 64
    assert not exporter.of("pls")


def test_redundancy_is_gone_with_a_server_and_whole_again_when_parities_are() -> None:
    worker = Died(member=Member(Role.WORKER, 0, 1), how="killed", at_s=0.5)
    server = Died(member=SERVER, how="killed", at_s=1.0)
    exporter = recorded(Redundant(records=9, at_s=0.0, took_s=0.1), worker, server)
    assert [each.value for each in exporter.of("redundant")] == [1, 0]
    exporter.record(Redundant(records=5, at_s=4.0, took_s=3.0))
    assert exporter.last("redundant").value == 1
    assert exporter.last("redundancy_seconds").value == 3.0


def test_progress_is_measured_by_step_as_far_as_it_is_known() -> None:
    known = Progress(step=40, samples_per_s=900.0, rows_per_s=5e4, behind=2, loss=0.6, pls=0.01, at_s=1.0)
    names = ("step", "samples_per_second", "rows_per_second", "behind_steps", "loss", "pls")
    exporter = recorded(known)
    assert [exporter.last(name).value for name in names] == [40, 900.0, 5e4, 2, 0.6, 0.01]
    assert {each.step for each in exporter.kept} == {40}
    unknown = Progress(step=0, samples_per_s=0.0, rows_per_s=0.0, behind=None, loss=None, pls=None, at_s=1.0)
    assert [each.instrument.name for each in recorded(unknown).kept] == list(names[:3])


def test_every_event_of_a_job_can_be_recorded() -> None:
    class Later:
        """An event that a later release tells of."""

    exporter = recorded(Later(), happenings.Ended(problem="", at_s=0.0))
    assert not exporter.kept
