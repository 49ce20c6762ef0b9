"""The measurement of DCP at a scale that proves nothing but that it measures."""

from __future__ import annotations

from benchmarks.claims import dcp


def test_second_save_writes_what_changed() -> None:
    figures = dcp.run("tiny").figures
    assert float(figures["dcp_second_save_bytes_over_first"]) < 0.2  # heads and the tree weigh more in so little
    assert all(float(figures[name]) > 0 for name in ("dcp_save_over_native", "dcp_load_over_native"))
