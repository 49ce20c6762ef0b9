"""A snapshot's buffer is one memory for all who map it, in huge pages where the system has them."""

from __future__ import annotations

import multiprocessing as mp
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from holdfast.checkpoint.wire.buffer import PAGE, FrameBuffer

HUGE = 2 << 20
SIZES = [(3, PAGE), (3, 5 * PAGE), (2, HUGE), (5, HUGE + PAGE), (8, 4 * HUGE)]


@pytest.fixture(params=SIZES, ids=lambda size: f"{size[0]} x {size[1]}")
def buffer(request: pytest.FixtureRequest) -> Iterator[FrameBuffer]:
    frames, frame_bytes = request.param
    buffer = FrameBuffer.reserve(frames=frames, frame_bytes=frame_bytes)
    yield buffer
    buffer.close()


def filled(buffer: FrameBuffer) -> np.ndarray:
    found = np.random.default_rng(7).integers(0, 256, buffer.frames * buffer.frame_bytes, np.uint8)
    np.frombuffer(buffer.whole(), np.uint8)[:] = found
    return found


def read_in_another_process(fd: int, frames: int, frame_bytes: int, expected: int) -> None:
    other = FrameBuffer(os.dup(fd), frames=frames, frame_bytes=frame_bytes)
    found = b"".join(bytes(other.frame(number)) for number in range(frames))
    other.frame(frames - 1)[-1] = 42
    os._exit(0 if hash_of(np.frombuffer(found, np.uint8)) == expected else 1)


def hash_of(found: np.ndarray) -> int:
    return int((found.astype(np.uint64) * np.arange(1, len(found) + 1, dtype=np.uint64)).sum())


def test_a_new_buffer_is_all_zeros(buffer: FrameBuffer) -> None:
    assert not np.frombuffer(buffer.whole(), np.uint8).any()
    assert len(buffer.whole()) == buffer.frames * buffer.frame_bytes


def test_another_process_sees_every_byte_and_what_it_writes_is_seen(buffer: FrameBuffer) -> None:
    expected = hash_of(filled(buffer))
    arguments = buffer.fd, buffer.frames, buffer.frame_bytes, expected
    process = mp.get_context("fork").Process(target=read_in_another_process, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert buffer.frame(buffer.frames - 1)[-1] == 42


def test_a_renewed_buffer_is_other_memory(buffer: FrameBuffer) -> None:
    before, old = filled(buffer), buffer.shared()
    buffer.renew()
    buffer.frame(0)[0] = before[0] ^ 1
    assert np.array_equal(np.frombuffer(old.whole(), np.uint8), before)
    assert not np.frombuffer(buffer.whole(), np.uint8)[1:].any()
    old.close()


def test_all_of_a_buffer_can_be_in_huge_pages() -> None:
    buffer = FrameBuffer.reserve(frames=4, frame_bytes=4 * HUGE)
    in_huge_pages = sum(mapped_in_huge_pages())
    buffer.close()
    if not in_huge_pages:
        pytest.skip("this system makes no huge pages of shared memory (before Linux 6.1, or forbidden)")
    assert in_huge_pages == 16 * HUGE


def mapped_in_huge_pages() -> Iterator[int]:
    """Bytes of each mapping of a snapshot's buffer in this process."""
    is_buffer = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            is_buffer = "holdfast-snapshot" in line
        elif is_buffer and line.startswith("ShmemPmdMapped:"):
            yield int(line.split()[1]) * 1024
