"""The cluster claim at a scale that proves nothing but that it measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.claims import cluster
from benchmarks.claims._cluster_clock import Clock, Times
from benchmarks.claims._cluster_spans import Spans


def test_a_clock_counts_what_came_after_the_warm_up(tmp_path: Path) -> None:
    clock = Clock(tmp_path, 0, warm_up=2, batch_size=10)
    for steps in range(1, 6):
        clock.tick(steps)
    clock.write({"push": 6.0})
    times = Times.read(tmp_path, warm_up=2)
    assert times.samples_per_s == pytest.approx(10 / times.step_s)
    assert times.spans_s == {"push": 2.0}
    assert times.cpu_s["worker"] >= 0


def test_each_second_counts_for_the_innermost_span() -> None:
    spans = Spans()
    inner = spans.timed(lambda: sum(range(300_000)), "inner")
    spans.timed(inner, "outer")()
    assert spans.seconds["outer"] < spans.seconds["inner"]


def test_a_step_on_servers_is_compared_with_steps_in_a_process() -> None:
    report = cluster.run("tiny", ["step"])
    ratio = float(report.figures["cluster_step_ms"]) / float(report.figures["local_torch_step_ms"])
    assert report.figures["cluster_over_local_step"] == pytest.approx(ratio)
    assert float(report.figures["server_cpu_us_per_step"]) >= 0
    assert {"unique", "pull, waiting", "forward and backward", "push", "place"} <= {
        str(row[0]) for row in report.tables[0].rows
    }


@pytest.mark.slow
def test_every_part_gives_its_figures() -> None:
    figures = cluster.run("tiny", list(cluster.PARTS)).figures
    for name in (
        "samples_per_s_1_worker",
        "scaling_2_workers",
        "cluster_over_local_step",
        "partial_pause_over_full_pause",
        "step_time_growth",
    ):
        assert float(figures[name]) > 0
    assert "over_ray_actor_calls" in figures or "over_ray_actor_calls_skipped" in figures
