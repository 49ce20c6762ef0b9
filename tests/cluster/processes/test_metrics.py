"""A real job, as metrics that Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import holdfast as hf
from holdfast.cluster.happenings import Recovered, Redundant
from tests.cluster.processes.jobs import RunningJob


@pytest.mark.slow
def test_prometheus_shows_how_a_cluster_goes_through_the_death_of_a_server(
    start_job: Callable[..., RunningJob],
) -> None:
    client = pytest.importorskip("prometheus_client", reason="needs holdfast[prometheus]")
    registry = client.CollectorRegistry()
    exporter = hf.metrics.Prometheus(registry=registry)
    parity = hf.Parity(data=2, parity=1, domain="process", rebuild="fast")
    job = start_job(parity=parity, spares=1, on_progress=exporter.cluster_hooks["on_progress"])
    job.wait_for(Redundant)
    job.gate.open(100_000, step_s=0.01)
    job.until(lambda: registry.get_sample_value("holdfast_samples_per_second"))
    job.until(lambda: registry.get_sample_value("holdfast_rows_per_second"))
    job.kill("server-1")
    job.wait_for(Recovered)
    job.wait_for(Redundant, 2)
    for event in job.of(object):
        exporter.record(event)  # type: ignore[arg-type]
    found = registry.get_sample_value
    assert found("holdfast_recoveries_total", {"rung": "parity"}) == 1
    assert found("holdfast_recovered_rows_total", {"source": "parity"}) > 0
    assert found("holdfast_redundant") == 1 and found("holdfast_redundancy_seconds_count") == 2
    assert found("holdfast_behind_steps") is not None and found("holdfast_step") > 0
