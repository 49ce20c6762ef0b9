"""The benchmark of codecs at a scale that proves nothing but that it measures what it says."""

from __future__ import annotations

import pytest

from benchmarks.claims import codec


def test_figures_have_the_names_that_others_read() -> None:
    figures = codec.run("tiny").figures
    for bits in (2, 4):
        for suffix in ("", "_2threads"):
            assert float(figures[f"adaptive_over_torch_speedup_{bits}bit{suffix}"]) > 0
            assert float(figures[f"asymmetric_over_torch_speedup_{bits}bit{suffix}"]) > 0
    for bits in (2, 3, 4):
        worst = float(figures[f"default_l2_over_greedy_l2_{bits}bit"])
        kinds = [float(figures[f"default_l2_over_greedy_l2_{bits}bit_{k}"]) for k in ("drawn", "trained_sgd")]
        assert max(kinds) <= worst < 1.02
        assert float(figures[f"l2_drawn_kmeans_vector_{bits}bit"]) < float(figures[f"l2_drawn_asymmetric_{bits}bit"])
        assert float(figures[f"greedy_gain_{bits}bit_bins_25"]) > 0
        rate = float(figures[f"encode_GBps_default_{bits}bit_1threads"])
        assert float(figures[f"default_{bits}bit_cores_for_1TB_in_5_minutes"]) == pytest.approx(1e3 / 300 / rate)
