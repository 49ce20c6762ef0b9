"""The claim about many saves at a scale that proves nothing but that it measures."""

from __future__ import annotations

from benchmarks.claims import manysaves


def test_every_case_is_measured_and_catalogs_are_a_share_of_the_run() -> None:
    figures = manysaves.run("tiny").figures
    assert figures["saves"] == manysaves.PLANS["tiny"].saves
    for prefix in ("", "keep_last_", "grid_"):
        assert 0 < float(figures[f"{prefix}catalog_bytes_share"]) < 1
        assert float(figures[f"{prefix}save_cost_growth"]) > 0
        assert float(figures[f"{prefix}agent_descriptors_growth"]) > 0
