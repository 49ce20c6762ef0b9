"""Arrays of several servers come to stand one after another, whatever copies them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from holdfast.cluster.train import transfer
from holdfast.kernels import bulk


@pytest.mark.parametrize("copy", [bulk.copy_alone, None], ids=["past the caches", "through them"])
@settings(deadline=None)
@given(lengths=st.lists(st.integers(0, 400), min_size=1, max_size=5), width=st.integers(1, 20), shift=st.integers(0, 3))
def test_arrays_stand_one_after_another(copy: Any, lengths: list[int], width: int, shift: int) -> None:
    arrays = [_numbers(shift + length * width)[shift:].reshape(length, width) for length in lengths]
    room: NDArray[np.float32] = np.full(sum(lengths) * width + 32, np.float32(7))
    target = room[16:-16].reshape(sum(lengths), width)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "_past_caches", lambda: copy)
        transfer.join(arrays, target)
    np.testing.assert_array_equal(target, np.concatenate(arrays))
    assert (room[:16] == 7).all()
    assert (room[-16:] == 7).all()


def _numbers(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(count).random(count, np.float32)
