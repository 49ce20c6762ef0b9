"""The benchmark at a scale that proves nothing but that it measures."""

from __future__ import annotations

import pytest

from benchmarks.claims import torchrec


@pytest.mark.timeout(300)  # two ranks and two agents start, and import much
def test_saves_of_two_ranks_are_measured_beside_dcps_staging() -> None:
    figures = torchrec.run("tiny").figures
    assert 0 < float(figures["torchrec_delta_bytes_over_full"]) < 1
    assert all(float(figures[f"torchrec_{name}_stall_s"]) > 0 for name in ("full", "delta", "dcp_best"))
    assert {"torchrec_stall_over_dcp_best_delta", "torchrec_stall_over_dcp_best_full"} <= figures.keys()
