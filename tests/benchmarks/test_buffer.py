"""The buffer's claim at a scale that proves nothing but that it measures."""

from __future__ import annotations

from benchmarks.claims import buffer


def test_both_kinds_of_pages_are_taken_mapped_and_let_go() -> None:
    figures = buffer.run("tiny").figures
    for kind in buffer.KINDS:
        for what in ("reserve", "map", "death_heard"):
            assert 0 < float(figures[f"buffer_{what}_s_{kind}"]) < 60
    assert figures["buffer_huge_share_small"] == 0
    assert figures["buffer_huge_share_huge"] in (0, 1)  # 0 where the system makes none
