"""Slots get the codec that their use in the optimizer asks for."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.codec import Asymmetric, Exact, Logarithmic, Rounded, slot_codec


@pytest.mark.parametrize(
    ("name", "dim", "dtype", "bits", "wanted"),
    [
        ("sum", 1, "F32", 2, Rounded()),
        ("momentum1", 1, "F32", 4, Rounded()),
        ("sum", 64, "F32", 2, Logarithmic(bits=8)),
        ("exp_avg_sq", 64, "F32", 4, Logarithmic(bits=8)),
        ("exp_avg", 64, "F32", 2, Asymmetric(bits=4)),
        ("exp_avg", 64, "BF16", 8, Asymmetric(bits=8)),
        ("momentum1", 64, "F32", 4, Exact()),
        ("step", 1, "I64", 4, Exact()),
        ("something", 64, "F32", 2, Exact()),
    ],
)
def test_what_each_kind_of_slot_gets(name: str, dim: int, dtype: str, bits: int, wanted: object) -> None:
    assert slot_codec(name, dim, dtype, bits) == wanted


def test_a_second_moment_stays_positive_and_its_step_within_a_few_percent() -> None:
    """A linear grid of as many bits loses the small moments, and the step that divides by their root is a leap."""
    draw = np.random.default_rng(1)
    moments = np.exp(draw.normal(-14, 2.5, (2000, 64))).astype(np.float32)
    kind = slot_codec("exp_avg_sq", 64, "F32", 2)
    back = kind.decode(kind.encode(moments), 64)
    assert (back > 0).all()
    step, wanted = 1 / (np.sqrt(back) + 1e-8), 1 / (np.sqrt(moments) + 1e-8)
    assert np.abs(step / wanted - 1).max() < 0.03
    linear = Asymmetric(bits=8).decode(Asymmetric(bits=8).encode(moments), 64)
    assert np.abs(1 / (np.sqrt(linear) + 1e-8) / wanted - 1).max() > 1
