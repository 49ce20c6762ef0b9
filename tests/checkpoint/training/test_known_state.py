"""State that is taken apart at every save: kept from the last one, or not, it is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from holdfast.checkpoint.training.known_state import KnownState
from holdfast.checkpoint.training.state import TrainingState
from holdfast.checkpoint.training.tables import find_tables
from holdfast.errors import UnsupportedState
from holdfast.format.tree import decode_tree


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("spare", torch.ones(2), persistent=False)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def get_extra_state(self) -> Any:
        return {"count": self.count, "seen": torch.tensor([self.count])}


class Training:
    """A model, its optimizers and an extra, and what is known of their state."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.ModuleDict(
            {"emb": nn.Embedding(5, 4, sparse=True), "top": nn.Linear(4, 2), "norm": Norm(), "counter": Counter()}
        )
        self.sparse = SGD(self.model["emb"].parameters(), lr=0.1)
        self.dense = Adam(self.model["top"].parameters(), lr=torch.tensor(0.01))
        self.schedule = torch.optim.lr_scheduler.StepLR(self.sparse, step_size=1)
        self.optimizers: list[Optimizer] = [self.sparse, self.dense]
        tables = find_tables({"": self.model}, self.optimizers)
        self.state = TrainingState({"": self.model}, self.optimizers, {"schedule": self.schedule}, tables)
        self.known = KnownState(self.state)
        self.step()

    def step(self) -> None:
        loss = self.model["top"](self.model["emb"](torch.tensor([1, 2]))).square().sum()
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()


def taken(known: KnownState) -> Any:
    training, builder = known.take_apart()
    live = list(builder.tensors)
    encoded = builder.finish(training)
    assert all(one is other for one, other in zip(encoded.tensors, live, strict=False))
    return decode_tree(encoded.skeleton, [tensor.clone() for tensor in encoded.tensors])


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return type(other) is Tensor and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def swap_data(training: Training) -> None:
    training.model["top"].weight.data = torch.randn(2, 4)


def transpose_data(training: Training) -> None:
    weight = training.model["top"].weight
    weight.data = weight.data.view(4, 2).T


def remake_buffer(training: Training) -> None:
    training.model["norm"].register_buffer("spare", torch.full((2,), 5.0), persistent=True)


def hide_buffer(training: Training) -> None:
    training.model["norm"].register_buffer("mean", training.model["norm"].mean, persistent=False)


def add_layer(training: Training) -> None:
    training.model["more"] = nn.Linear(2, 2)


def rename_layer(training: Training) -> None:
    training.model["norms"] = training.model.pop("norm")


def add_state(training: Training) -> None:
    training.sparse.state[training.model["emb"].weight]["square"] = torch.full((5, 4), 2.0)


def swap_state(training: Training) -> None:
    training.dense.state[training.model["top"].weight]["exp_avg"] = torch.randn(2, 4)


def add_group(training: Training) -> None:
    training.dense.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": torch.tensor(0.5)})
    training.model.register_parameter("scale", training.dense.param_groups[1]["params"][0])


def share_state(training: Training) -> None:
    training.dense.state["shared"] = {"count": 3}


CHANGES: dict[str, Callable[[Training], object]] = {
    "nothing": lambda training: None,
    "a step": Training.step,
    "a learning rate": lambda training: training.sparse.param_groups[0].update(lr=0.5),
    "a learning rate in a tensor": lambda training: training.dense.param_groups[0]["lr"].fill_(0.7),
    "a learning rate of another type": lambda training: training.sparse.param_groups[0].update(lr=1),
    "a flag": lambda training: training.sparse.param_groups[0].update(nesterov=True),
    "an option": lambda training: training.sparse.param_groups[0].update(note="x"),
    "an option that holds others": lambda training: training.sparse.param_groups[0].update(milestones=[1, 2]),
    "a scheduler": lambda training: training.schedule.step(),
    "a buffer in place": lambda training: training.model["norm"].mean.add_(1.0),
    "another buffer": lambda training: setattr(training.model["norm"], "mean", torch.full((3,), 9.0)),
    "a buffer's persistence": remake_buffer,
    "a buffer that is hidden": hide_buffer,
    "memory behind a parameter": swap_data,
    "strides of a parameter": transpose_data,
    "a layer": add_layer,
    "a layer's name": rename_layer,
    "a module's own state": lambda training: setattr(training.model["counter"], "count", 4),
    "state of an optimizer": add_state,
    "another tensor of a state": swap_state,
    "a group": add_group,
    "state of no parameter": share_state,
    "an attribute": lambda training: setattr(training.dense, "inside", [SGD(training.model["top"].parameters())]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changed_since_the_last_save_shows(change: Callable[[Training], object]) -> None:
    training = Training()
    taken(training.known)
    change(training)
    for _ in range(2):
        assert same(taken(training.known), taken(KnownState(training.state)))


def test_only_what_changed_is_taken_apart_again() -> None:
    training = Training()
    first, _ = training.known.take_apart()
    training.step()
    second, _ = training.known.take_apart()
    assert second["model"] is first["model"] and second["optimizers"] is first["optimizers"]
    training.sparse.param_groups[0]["lr"] = 0.5
    assert training.known.take_apart()[0]["optimizers"] is not first["optimizers"]


def test_a_list_in_a_group_that_changes_in_place_shows() -> None:
    training, milestones = Training(), [1, 2]
    training.sparse.param_groups[0]["milestones"] = milestones
    taken(training.known)
    milestones.append(3)
    assert taken(training.known)["optimizers"][0]["groups"][0]["options"]["milestones"] == [1, 2, 3]


def test_what_cannot_be_stored_is_refused_by_its_path() -> None:
    training = Training()
    taken(training.known)
    training.sparse.param_groups[0]["odd"] = object()
    with pytest.raises(UnsupportedState, match=r"state\['training'\]\['optimizers'\]\[0\]\['groups'\]"):
        taken(training.known)
