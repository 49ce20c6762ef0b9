"""The claim about GPUs at a scale, and on a device, that prove nothing but that it measures."""

from __future__ import annotations

import pytest
import torch

from benchmarks.claims import gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so() -> None:
    report = gpu.run("small")
    assert "skipped" in report.title and report.figures == {"gpu_skipped": "there is no CUDA device"}


@pytest.mark.slow
def test_every_way_to_save_is_measured_in_pairs() -> None:
    figures = gpu.measure(gpu.PLANS["tiny"], torch.device("cpu")).figures
    for way in (*gpu.WAYS, gpu.EXACT, *gpu.BESIDE):
        assert figures[f"{way.figure}_q1"] <= figures[way.figure] <= figures[f"{way.figure}_q3"]  # type: ignore[operator]
    assert float(figures["gpu_save_call_ms"]) > 0
