"""Where state goes from one save to the next."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.checkpoint.snapshot.state_plan import StatePlans
from tests.checkpoint.snapshot.delayed_streams import DelayedStreams

CPU = torch.device("cpu")


def copied(plans: StatePlans, state: dict[int, Tensor], buffer: Tensor) -> dict[int, bytes]:
    buffer.zero_()
    plan = plans.of(state, {CPU: buffer})
    return {number: bytes(raw.numpy()) for each in plan.devices for number, raw in each.copy().items()}


def raw(state: dict[int, Tensor]) -> dict[int, bytes]:
    return {number: tensor.contiguous().numpy().tobytes() for number, tensor in state.items()}


def test_every_save_copies_what_tensors_hold_then() -> None:
    plans, buffer = StatePlans(DelayedStreams()), torch.zeros(10_000, dtype=torch.uint8)
    state = {1: torch.randn(4, 3), 2: torch.randn(7)}
    for _ in range(3):
        state[2].add_(1.0)
        assert copied(plans, dict(state), buffer) == raw(state)


def test_another_tensor_of_the_same_form_is_another_state() -> None:
    plans, buffer = StatePlans(DelayedStreams()), torch.zeros(10_000, dtype=torch.uint8)
    state = {1: torch.randn(4, 3), 2: torch.randn(7)}
    copied(plans, dict(state), buffer)
    for changed in ({1: torch.randn(4, 3)}, {2: torch.randn(9)}, {3: torch.randn(2)}):
        state |= changed
        assert copied(plans, dict(state), buffer) == raw(state)


def test_state_that_is_not_contiguous_is_read_every_time() -> None:
    plans, buffer, tensor = StatePlans(DelayedStreams()), torch.zeros(10_000, dtype=torch.uint8), torch.randn(4, 3)
    state = {1: tensor.T}
    for _ in range(2):
        tensor.mul_(2.0)
        assert copied(plans, state, buffer) == raw(state)


def test_state_in_host_memory_is_set_aside() -> None:
    class OnlyLarge(DelayedStreams):
        def covers(self, tensor: Tensor) -> bool:
            return tensor.dim() > 0

    state = {1: torch.randn(4), 2: torch.tensor(3.0)}
    plan = StatePlans(OnlyLarge()).of(state, {})
    assert plan.host == {2: state[2]} and plan.devices[0].used == 512
