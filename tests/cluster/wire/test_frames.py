"""Messages survive the wire bit for bit, and nothing but a message is taken for one."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.core.messages import Applied, Hello, Message, Pull, Push
from holdfast.cluster.core.progress import BEGINNING, Progress
from holdfast.cluster.wire import arrays
from holdfast.cluster.wire.arrays import INLINE_BYTES
from holdfast.cluster.wire.fields import codec_of
from holdfast.cluster.wire.frames import HEADER_BYTES, TYPES, Framed, Route, read_header, read_message, write
from holdfast.cluster.wire.malformed import MalformedFrame
from holdfast.cluster.wire.sheet import MOST_FRAME_BYTES
from holdfast.errors import ConfigurationError
from tests.cluster.wire.samples import MESSAGES, same

ROUTE = Route(Member(Role.WORKER, 3, 2), Member(Role.SERVER, 1, 1))
QUICK = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def framed(message: Framed, number: int = 7) -> tuple[bytearray, list[bytearray]]:
    head, arrays = write(ROUTE.to_bytes(), number, message)
    return head, [bytearray(array.tobytes()) for array in arrays]


def read(head: bytearray, frames: list[bytearray]) -> Framed:
    return read_message(read_header(head).code, head, [memoryview(frame) for frame in frames])


def test_every_message_of_the_core_has_a_code() -> None:
    assert set(get_args(Message)) <= set(TYPES.values())
    assert len(set(TYPES.values())) == len(TYPES)


@QUICK
@given(MESSAGES, st.integers(1, 2**64 - 1))
def test_a_message_comes_back_as_it_was(message: Framed, number: int) -> None:
    head, frames = framed(message, number)
    header = read_header(head)
    assert (header.number, Route.from_bytes(header.route)) == (number, ROUTE)
    assert same(read(head, frames), message)


@QUICK
@given(MESSAGES, st.data())
def test_mutated_frames_are_refused_or_are_a_message(message: Framed, data: st.DataObject) -> None:
    frames = list(framed(message))
    mutated: list[bytearray] = [frames[0], *frames[1]]  # type: ignore[list-item]
    for _ in range(data.draw(st.integers(1, 3))):
        mutated = mutate(mutated, data)
    try:
        found = read(mutated[0], mutated[1:]) if mutated else None
    except MalformedFrame:
        return
    if found is not None:
        assert same(read(*framed(found)), found)


def mutate(frames: list[bytearray], data: st.DataObject) -> list[bytearray]:
    if not frames:
        return [bytearray(data.draw(st.binary(max_size=40)))]
    index = data.draw(st.integers(0, len(frames) - 1))
    frame = bytearray(frames[index])
    at = data.draw(st.integers(0, len(frame)))
    way = data.draw(st.sampled_from(["change", "cut", "insert", "append", "remove", "repeat"]))
    if way == "remove":
        return [*frames[:index], *frames[index + 1 :]]
    if way == "repeat":
        return [*frames[:index], frame, *frames[index:]]
    if way == "change" and at < len(frame):
        frame[at] = data.draw(st.integers(0, 255))
    elif way == "cut":
        del frame[at:]
    elif way == "insert":
        frame[at:at] = data.draw(st.binary(min_size=1, max_size=9))
    else:
        frame += data.draw(st.binary(min_size=1, max_size=9))
    return [*frames[:index], frame, *frames[index + 1 :]]


@pytest.mark.parametrize(
    ("at", "byte", "reason"),
    [
        (0, 0, "is not b'HF' of version 5"),
        (2, 1, "of version 1 is not"),
        (3, 99, "no message has the type 99"),
        (HEADER_BYTES + 7, 0x80, "not less than"),
    ],
)
def test_the_error_says_what_is_wrong(at: int, byte: int, reason: str) -> None:
    head, _ = framed(Applied(1))
    head[at] = byte
    with pytest.raises(MalformedFrame, match=reason):
        read(head, [])


@pytest.mark.parametrize("at", [12, 13])
def test_roles_that_do_not_exist_are_refused(at: int) -> None:
    head, _ = framed(Applied(1))
    head[at] = 3
    with pytest.raises(MalformedFrame, match="role"):
        Route.from_bytes(read_header(head).route)


def test_nothing_may_be_left_over() -> None:
    head, _ = framed(Applied(1))
    with pytest.raises(MalformedFrame, match="1 bytes of the header"):
        read(head + b"\0", [])
    with pytest.raises(MalformedFrame, match="1 array frames"):
        read(head, [bytearray(3)])


def test_a_large_array_is_not_copied_on_either_side() -> None:
    large = np.arange(INLINE_BYTES * 8)
    head, arrays = write(ROUTE.to_bytes(), 1, Pull(1, (large,), 0))
    assert np.shares_memory(arrays[0], large)
    frame = bytearray(large.tobytes())
    pull = read(head, [frame])
    assert isinstance(pull, Pull)
    assert np.shares_memory(pull.rows[0], np.frombuffer(frame, np.uint8))


@pytest.mark.parametrize("count", [3, INLINE_BYTES, 5 * INLINE_BYTES])
def test_arrays_that_arrive_are_aligned_and_may_be_written_to(count: int) -> None:
    payload = (np.ones(3, bool), np.arange(count, dtype=np.float32), np.arange(count))
    head, frames = framed(Push(1, payload, b"xyz", BEGINNING))
    unaligned = [memoryview(bytearray(1) + frame)[1:] for frame in frames]
    push = read_message(read_header(head).code, head, unaligned)
    assert isinstance(push, Push)
    assert all(each.flags.aligned and each.flags.writeable for each in push.gradients)
    assert same(push.gradients, payload)


def test_an_array_that_is_larger_than_a_frame_takes_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "MOST_FRAME_BYTES", 10_000)
    payload = (np.arange(7000).reshape(70, 100), np.arange(5000, dtype=np.int32))
    head, frames = framed(Pull(1, payload, 0))
    assert [len(frame) for frame in frames] == [10_000] * 5 + [6_000] + [10_000] * 2
    pull = read(head, frames)
    assert same(pull, Pull(1, payload, 0))
    with pytest.raises(MalformedFrame):
        read(head, [frames[0], *frames])


def test_a_header_that_is_larger_than_a_frame_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Hello"):
        framed(Hello(Progress(1, bytes(MOST_FRAME_BYTES)), BEGINNING))


def test_an_array_with_gaps_is_sent_whole() -> None:
    payload = (np.arange(4000).reshape(40, 100)[:, ::3], np.arange(10)[::2])
    assert same(read(*framed(Pull(1, payload, 0))), Pull(1, payload, 0))


@pytest.mark.parametrize("array", [np.zeros(3), np.array(["a"]), np.zeros((1,) * 9, np.float32)])
def test_an_array_that_cannot_be_sent_is_refused_by_name(array: Any) -> None:
    with pytest.raises(ConfigurationError, match="cannot be sent"):
        framed(Pull(1, (array,), 0))


@pytest.mark.parametrize("number", [-1, 2**63])
def test_a_number_that_does_not_fit_is_refused(number: int) -> None:
    with pytest.raises(ConfigurationError, match=str(number)):
        framed(Applied(number))


def test_a_field_of_a_type_without_an_encoding_is_refused() -> None:
    with pytest.raises(TypeError, match="no frame holds"):
        codec_of(set[int], "things")
