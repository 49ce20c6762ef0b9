"""The benchmark of codecs at a scale that proves nothing but that it measures what it says."""

from __future__ import annotations

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
