"""A baseline on its device: what differences are made from, and when they are not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast.checkpoint.snapshot.device_baselines import DeviceBaselines
from holdfast.codec import Difference
from holdfast.codec.difference import Baseline
from holdfast.codec.quantized import Asymmetric, Fitted, Quantized, Symmetric, default
from holdfast.kernels.quantize import tensors
from holdfast.types import Kind
from tests.checkpoint.snapshot.delayed_streams import DelayedStreams

CPU = torch.device("cpu")
ROWS, FIRST, STOP = 90, 10, 80


@pytest.fixture(autouse=True)
def encodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The host encodes as a device would."""
    monkeypatch.setattr(tensors, "is_cheap", lambda table, scheme: tensors.is_plain(table))
    yield


def odd_rows(dim: int) -> Tensor:
    """Among them rows that no record holds, constant ones, and zeros of both signs."""
    torch.manual_seed(dim)
    rows = torch.randn(ROWS, dim)
    rows[12::9] = torch.tensor([torch.nan, torch.inf, -torch.inf, 3e38, 1e-42]).repeat(2)[: len(rows[12::9]), None]
    rows[13::9] = 2.5
    rows[14::9] = 1.0 + 1e-4 * torch.randn(len(rows[14::9]), dim)
    rows[15::9] = -0.0
    return rows


def baselines(size: int = 2**20, streams: DelayedStreams | None = None) -> DeviceBaselines:
    return DeviceBaselines(streams or DelayedStreams(most_at_once=100), {CPU: size})


def keep(found: DeviceBaselines, rows: Tensor, codec: Quantized, *, name: str = "first") -> None:
    found.take(name)
    found.keep(0, rows, codec, default(2), FIRST, STOP)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("dim", [5, 16])
@pytest.mark.parametrize("codec", [Asymmetric(bits=8), Symmetric(bits=8)], ids=repr)
def test_differences_are_those_that_the_agent_makes(codec: Quantized, dim: int, bits: int) -> None:
    found, rows, inner = baselines(), odd_rows(dim), default(bits)
    keep(found, rows, codec)
    found.committed(Kind.FULL, ())
    before = codec.decode(codec.encode(rows[FIRST:STOP].numpy()), dim)
    now = rows + 0.01 * torch.randn(ROWS, dim)
    now[20:30] = rows[20:30]
    now[31] = torch.inf
    base = found.of(0, "first")
    assert base is not None
    assert np.array_equal(base.decoded(torch.arange(FIRST, STOP)).numpy().view(np.int32), before.view(np.int32))
    ids = torch.arange(FIRST, STOP)[::3]
    agents = Difference(inner=inner, baseline=Baseline(checkpoint="first", digest="")).encode(
        now[ids].numpy(), before[(ids - FIRST).numpy()]
    )
    assert np.array_equal(tensors.encode(now, inner.scheme, ids, base=base).numpy(), agents.records)


def test_a_baseline_counts_once_it_is_committed() -> None:
    found = baselines()
    keep(found, torch.randn(ROWS, 16), Asymmetric(bits=8))
    assert found.of(0, "first") is None
    found.committed(Kind.FULL, ())
    assert found.of(0, "first") is not None
    assert found.of(0, "another") is None and found.of(0, None) is None and found.of(1, "first") is None


def test_a_baseline_that_fails_takes_the_one_before_it_along() -> None:
    found = baselines()
    keep(found, torch.randn(ROWS, 16), Asymmetric(bits=8))
    found.committed(Kind.FULL, ())
    keep(found, torch.randn(ROWS, 16), Asymmetric(bits=8), name="second")
    found.failed(Kind.FULL)
    assert found.of(0, "first") is None and found.of(0, "second") is None
    keep(found, torch.randn(ROWS, 16), Asymmetric(bits=8), name="third")
    found.committed(Kind.FULL, ())
    assert found.of(0, "third") is not None


def test_it_is_not_used_before_it_is_known_to_be_whole() -> None:
    streams = DelayedStreams(most_at_once=0)
    found = baselines(streams=streams)
    keep(found, torch.randn(ROWS, 16), Asymmetric(bits=8))
    found.committed(Kind.FULL, ())
    assert found.of(0, "first") is None
    streams.most_at_once = 3
    for _ in range(20):
        used = found.of(0, "first")
    assert used is not None


def test_priority_saves_change_nothing() -> None:
    found = baselines()
    keep(found, torch.randn(ROWS, 16), Asymmetric(bits=8))
    found.committed(Kind.FULL, ())
    for end in (found.failed, lambda kind: found.committed(kind, ())):
        found.begin(Kind.PRIORITY)
        end(Kind.PRIORITY)
        assert found.of(0, "first") is not None


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_table_that_a_committed_delta_held_whole_is_dropped(is_committed: bool) -> None:
    found = baselines()
    keep(found, torch.randn(ROWS, 16), Asymmetric(bits=8))
    found.committed(Kind.FULL, ())
    found.take(None)
    found.hold_whole(0)
    if is_committed:
        found.committed(Kind.INCREMENTAL, ())
    else:
        found.failed(Kind.INCREMENTAL)
    assert (found.of(0, "first") is None) is is_committed


def test_after_two_saves_that_failed_with_it_it_is_used_no_more() -> None:
    found = baselines()
    keep(found, torch.randn(ROWS, 16), Asymmetric(bits=8))
    found.committed(Kind.FULL, ())
    for is_used in (True, True, False, False):
        found.take(None)
        assert (found.of(0, "first") is not None) is is_used
        found.failed(Kind.INCREMENTAL)
        found.take(None)
        assert found.of(0, "first") is None
        found.committed(Kind.INCREMENTAL, ())
    keep(found, torch.randn(ROWS, 16), Asymmetric(bits=8), name="second")
    found.committed(Kind.FULL, ())
    found.take(None)
    assert found.of(0, "second") is not None


def test_only_what_a_device_can_decode_is_kept() -> None:
    for rows, codec in (
        (torch.randn(ROWS, 16), Fitted(bits=4)),
        (torch.randn(ROWS, 16, dtype=torch.float64), Asymmetric(bits=8)),
    ):
        found = baselines()
        keep(found, rows, codec)
        found.committed(Kind.FULL, ())
        assert found.of(0, "first") is None


def test_memory_is_taken_once() -> None:
    streams = DelayedStreams(most_at_once=100)
    found = baselines(streams=streams)
    found.reserve(0, torch.randn(ROWS, 16)[FIRST:STOP], Asymmetric(bits=8), default(2), FIRST)
    for name in ("first", "second", "third"):
        keep(found, torch.randn(ROWS, 16), Asymmetric(bits=8), name=name)
        found.committed(Kind.FULL, ())
        assert found.of(0, name) is not None
    assert len(streams._buffers) == 2
