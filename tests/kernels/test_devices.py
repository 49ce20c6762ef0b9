"""Whether Triton can be used."""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Iterator

import pytest
import torch

from holdfast.kernels import devices
from holdfast.kernels.bit_sets import portable
from holdfast.kernels.bit_sets import tensors as sets


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    devices.triton_works.cache_clear()
    yield
    devices.triton_works.cache_clear()


def test_without_triton_pytorch_does_the_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "holdfast.kernels.bit_sets.gpu", None)
    monkeypatch.delattr("holdfast.kernels.bit_sets.gpu", raising=False)
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        assert not devices.triton_works()
    assert not caplog.records  # nothing is wrong


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device that kernels can be compiled for")
def test_where_it_cannot_compile_that_is_told_once_and_pytorch_does_the_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def mark(*_: object) -> None:
        raise RuntimeError("Failed to find C compiler")

    module = types.ModuleType("holdfast.kernels.bit_sets.gpu")
    module.mark = mark  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "holdfast.kernels.bit_sets.gpu", module)
    monkeypatch.setattr("holdfast.kernels.bit_sets.gpu", module, raising=False)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)  # there is no such device here
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        assert not devices.triton_works() and not devices.triton_works()
        assert sets._device_kernels("cuda") is portable
    assert len(caplog.records) == 1 and "C compiler" in caplog.records[0].getMessage()
