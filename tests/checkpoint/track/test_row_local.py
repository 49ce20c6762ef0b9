from __future__ import annotations

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim

from holdfast.checkpoint.track.row_local import why_not_row_local

WEIGHTS = [0.0, -0.0, 1.0, -1.5, 1e-40, -1e-45, 3e38, math.inf, -math.inf, math.nan]
RATES = st.one_of(
    st.sampled_from([0, 0.0, -0.0, 1, 0.1, 1e30, 1e300, math.inf, math.nan, -0.1]),
    st.floats(min_value=0, allow_nan=False),
)


def step_with_zero_gradient_for_most_rows(optimizer: optim.Optimizer, weight: nn.Parameter) -> None:
    weight.grad = torch.zeros_like(weight)
    weight.grad[0] = 1.0
    optimizer.step()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().view(torch.uint8)


@settings(deadline=None, max_examples=300)
@given(
    lr=RATES,
    kind=st.sampled_from(["sgd", "adagrad"]),
    how=st.sampled_from([{"foreach": False}, {"foreach": True}, {"fused": True}]),
    maximize=st.booleans(),
    eps=st.sampled_from([0.0, 1e-10, 1e-5, math.nan]),
    lr_decay=st.sampled_from([0, 0.5, -0.0, math.inf]),
    start=st.sampled_from([0, 0.0, -0.0, 1.0, math.inf]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
)
def test_rows_with_a_zero_gradient_keep_every_bit_under_all_that_is_allowed(
    lr, kind, how, maximize, eps, lr_decay, start, dtype
) -> None:
    weight = nn.Parameter(torch.tensor(WEIGHTS, dtype=torch.float64).to(dtype)[:, None].repeat(2, 5))
    if kind == "sgd":
        optimizer: optim.Optimizer = optim.SGD([weight], lr=0.1, maximize=maximize, **how)
    else:
        optimizer = optim.Adagrad([weight], lr=0.1, initial_accumulator_value=start, maximize=maximize, **how)
        optimizer.param_groups[0].update(eps=eps, lr_decay=lr_decay)
    optimizer.param_groups[0]["lr"] = lr
    if why_not_row_local(optimizer, optimizer.param_groups[0], sparse_gradient=False, dtype=dtype) is not None:
        return
    state = optimizer.state.get(weight, {})
    before = [bits(weight), *(bits(slot) for slot in state.values() if slot.dim())]
    for _ in range(2):
        step_with_zero_gradient_for_most_rows(optimizer, weight)
    after = [bits(weight), *(bits(slot) for slot in state.values() if slot.dim())]
    for column_before, column_after in zip(before, after, strict=True):
        assert torch.equal(column_before[1:], column_after[1:])


def reason(optimizer: optim.Optimizer, *, sparse: bool = True) -> str | None:
    return why_not_row_local(optimizer, optimizer.param_groups[0], sparse_gradient=sparse, dtype=torch.float32)


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(4, 2))]


ALLOWED = [
    optim.SGD(parameters(), lr=0.1),
    optim.SGD(parameters(), lr=torch.tensor(0.1)),
    optim.Adagrad(parameters()),
    optim.SparseAdam(parameters()),
]
REFUSED = {
    "momentum=0 to get deltas": optim.SGD(parameters(), lr=0.1, momentum=0.9),
    "weight_decay=0 to get deltas": optim.Adagrad(parameters(), weight_decay=0.1),
    "Adam is not known .* SparseAdam, or Adagrad or SGD without momentum": optim.Adam(parameters()),
    "AdamW is not known": optim.AdamW(parameters()),
    "RMSprop is not known": optim.RMSprop(parameters()),
}


@pytest.mark.parametrize("optimizer", ALLOWED, ids=lambda o: type(o).__name__)
def test_the_list_of_row_local_optimizers(optimizer: optim.Optimizer) -> None:
    assert reason(optimizer) is None


@pytest.mark.parametrize("text", REFUSED)
def test_other_optimizers_get_a_reason_and_a_remedy(text: str) -> None:
    found = reason(REFUSED[text])
    assert found is not None
    assert re.search(text, found)


def test_a_subclass_is_not_trusted() -> None:
    class Mine(optim.SGD):
        pass

    assert "Mine is not known" in (reason(Mine(parameters(), lr=0.1)) or "")


def test_settings_are_those_of_now() -> None:
    optimizer = optim.SGD(parameters(), lr=0.1)
    assert reason(optimizer) is None
    optimizer.param_groups[0]["momentum"] = 0.5
    assert "momentum" in (reason(optimizer) or "")
    optimizer.param_groups[0].update(momentum=0, weight_decay=torch.tensor(0.1))
    assert "weight decay" in (reason(optimizer) or "")


def test_a_setting_on_a_device_is_not_waited_for() -> None:
    optimizer = optim.SGD(parameters(), lr=0.1)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1, device="meta")  # reading it would raise
    assert reason(optimizer) is None
    assert "on the CPU" in (reason(optimizer, sparse=False) or "")


def test_sparse_adam_wants_sparse_gradients() -> None:
    assert "sparse=True" in (reason(optim.SparseAdam(parameters()), sparse=False) or "")
