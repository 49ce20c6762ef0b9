"""Checksums by carry-less multiplication are those of zlib, whatever the bytes and the blocks."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.kernels.checksums import fast_checksums, zlib_checksums


@settings(max_examples=40)
@given(
    data=st.binary(max_size=700),
    skipped=st.integers(0, 40),
    block_bytes=st.sampled_from([1, 16, 63, 64, 100, 256, 300, 512]),
)
def test_any_bytes_at_any_address_have_the_checksums_of_zlib(data: bytes, skipped: int, block_bytes: int) -> None:
    view = memoryview(bytes(skipped) + data)[skipped:]
    assert fast_checksums()(view, block_bytes) == zlib_checksums(view, block_bytes)


@pytest.mark.parametrize("length", [0, 131071, 131072, 131073, 3 * 131072 + 64, 1 << 20])
def test_blocks_of_a_bundle(length: int) -> None:
    data = np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8).data
    assert fast_checksums()(data, 131072) == zlib_checksums(data, 131072)


def test_nothing_is_loaded_for_a_few_bytes() -> None:
    """Loading Numba takes longer than zlib takes for a GiB; once it is there, everybody uses it."""
    program = (
        "import sys; from holdfast.kernels import checksums as it; it.load_for(1 << 30); "
        "assert it.ready_checksums() is it.zlib_checksums and 'numba' not in sys.modules; "
        "it.load_for(8 << 30); assert it.ready_checksums() is it.fast_checksums()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_flipped_bit_shows() -> None:
    data = bytearray(1024)
    before = fast_checksums()(memoryview(data), 1024)
    for position in (0, 15, 64, 700, 1023):
        data[position] ^= 4
        assert fast_checksums()(memoryview(data), 1024) != before
        data[position] ^= 4
