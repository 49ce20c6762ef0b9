"""An ordinary model is built without its large tables, and says so where code wants to touch one."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import Embedding as ImportedEarlier
from torch.nn import functional as F

from holdfast.cluster.plan import ModelPlan
from holdfast.cluster.train.build import BuiltModel, build
from holdfast.errors import ConfigurationError
from holdfast.policy import Constant, Normal, Uniform, tables

HUGE = 10**11  # rows: a model that made one of them would end here


class Doubled(nn.Embedding):
    """A plain subclass."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


class WithOwnStart(nn.Embedding):
    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user = ImportedEarlier(HUGE, 64, padding_idx=-1)
        self.item = nn.EmbeddingBag(HUGE, 8, mode="sum", sparse=True)
        self.shop = Doubled(HUGE, 64)
        self.small = nn.Embedding(10, 4, sparse=True)
        self.tied = nn.Embedding(HUGE, 64)
        self.tied.weight = self.shop.weight
        self.top = nn.Linear(4, 2)
        self.head = nn.Linear(4, 2)
        self.head.weight = self.top.weight
        self.head.bias.requires_grad_(False)
        assert self.user.weight.shape == (HUGE, 64) and self.user.weight.dtype == torch.float32


@pytest.fixture(scope="module")
def built() -> BuiltModel:
    return build(Model, tables(init={"user": Uniform(-1, 1), "i*": Constant(0.5)}, seed=3))


def test_tables_above_a_size_become_part_of_the_plan(built: BuiltModel) -> None:
    user, item, shop = built.plan.tables
    assert (user.name, user.rows, user.width, user.padding_idx) == ("user.weight", HUGE, 64, HUGE - 1)
    assert (item.name, item.width, item.init) == ("item.weight", 8, Constant(0.5))
    assert (shop.name, shop.aliases, shop.init) == ("shop.weight", ("tied.weight",), Normal(0, 1))
    assert user.init == Uniform(-1, 1) and built.plan.seed == 3
    assert ModelPlan.from_json(built.plan.to_json()) == built.plan


def test_everything_else_is_dense(built: BuiltModel) -> None:
    specs = {each.name: each for each in built.plan.dense}
    assert list(specs) == ["small.weight", "top.weight", "top.bias", "head.bias"]
    assert specs["top.weight"].aliases == ("head.weight",)
    assert not specs["head.bias"].requires_grad
    assert len(built.dense_values()) == built.plan.dense_size == 40 + 8 + 2 + 2


def test_a_table_remains_a_module_of_its_class(built: BuiltModel) -> None:
    assert isinstance(built.module.user, nn.Embedding) and isinstance(built.module.shop, Doubled)
    assert isinstance(built.module.item, nn.EmbeddingBag)
    assert "Doubled(100000000000, 64, on servers)" in repr(built.module)
    assert [name for name, _ in built.module.named_parameters()][:3] == ["user.weight", "item.weight", "shop.weight"]


def test_models_begin_alike_in_every_process_and_leave_random_numbers_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state(legacy=False)["state"]["pos"]
    one = build(Model).dense_values()
    torch.rand(3)
    other = build(Model).dense_values()
    np.testing.assert_array_equal(one, other)
    assert not np.array_equal(one, build(Model, tables(seed=1)).dense_values())
    torch.set_rng_state(before[0])
    build(Model)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state(legacy=False)["state"]["pos"] == before[1]


def test_torch_makes_tables_as_ever_afterwards() -> None:
    with pytest.raises(ZeroDivisionError):
        build(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    assert type(nn.Embedding(1 << 18, 2)) is nn.Embedding
    assert nn.Embedding(3, 2).weight.shape == (3, 2)


def model_of(touch: Callable[[nn.Module], object]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = nn.Module()
        model.user = nn.Embedding(HUGE, 64)
        touch(model)
        return model

    return make


def assign(model: Any) -> None:
    model.user.weight = nn.Parameter(torch.zeros(2, 2))


def tie(model: Any) -> None:
    model.out = nn.Linear(64, 2)
    model.out.weight = model.user.weight


TOUCHES: list[tuple[Callable[[Any], object], str]] = [
    (lambda model: nn.init.uniform_(model.user.weight, -0.1, 0.1), "uniform_ cannot run"),
    (lambda model: nn.init.xavier_uniform_(model.user.weight), "cannot run"),
    (lambda model: model.user.weight.data, "data cannot run"),
    (lambda model: model.user.weight[0], "__getitem__ cannot run"),
    (lambda model: model.user.weight.mul_(0.1), "mul_ cannot run"),
    (lambda model: torch.cat([model.user.weight]), "cat cannot run"),
    (lambda model: F.embedding(torch.zeros(1).long(), model.user.weight), "embedding cannot run"),
    (lambda model: model.user(torch.zeros(1).long()), "forward() cannot run"),
    (lambda model: copy.deepcopy(model.user), "cannot run"),
    (assign, "an assignment cannot run"),
    (lambda model: WithOwnStart(HUGE, 4), "WithOwnStart(100000000000, 4), created at"),
]


@pytest.mark.parametrize(("touch", "words"), TOUCHES)
def test_a_weight_that_is_touched_in_a_constructor_names_table_and_remedy(touch: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        build(model_of(touch))
    said = str(refusal.value)
    assert words in said and "lives on servers" in said and "tables(init=" in said and "min_bytes" in said
    assert re.search(r"\(100000000000, \d+\), created at \S*test_build\.py:\d+", said)


@pytest.mark.parametrize(
    ("touch", "words"),
    [
        (tie, "out.weight is tied to user.weight, which lives on servers: a Linear needs the whole weight"),
        (
            lambda model: nn.Embedding.from_pretrained(torch.zeros(1 << 16, 8)),
            "Embedding(65536, 8) was given its weight",
        ),
        (
            lambda model: nn.EmbeddingBag.from_pretrained(torch.zeros(1 << 16, 8)),
            "EmbeddingBag(65536, 8) was given its",
        ),
        (lambda model: nn.Embedding(HUGE, 8, max_norm=1.0), "has max_norm, which changes rows as they are read"),
        (
            lambda model: nn.Embedding(HUGE, 8, dtype=torch.float16),
            "is torch.float16, and tables on servers are float32",
        ),
        (lambda model: model.half(), "tables on servers are float32, and Embedding was to become torch.float16"),
        (lambda model: model.add_module("low", nn.Linear(2, 2).double()), "the parameter low.weight is torch.float64"),
        (lambda model: model.load_state_dict({"user.weight": torch.zeros(1)}), "cannot be loaded in a worker"),
    ],
)
def test_what_servers_cannot_do_is_refused_with_a_remedy(touch: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        build(model_of(touch))
    assert words in str(refusal.value)


def test_a_function_that_returns_no_model_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="returned NoneType, not a Module"):
        build(lambda: None)  # type: ignore[arg-type, return-value]


def test_moving_a_model_moves_no_table() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Embedding(HUGE, 8), nn.Linear(8, 1)).to("cpu").float()

    assert [each.name for each in build(make).plan.tables] == ["0.weight"]


def test_the_size_above_which_a_table_is_on_servers_is_a_setting() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Embedding(100, 8), nn.Embedding(0, 8))

    assert not build(make).plan.tables
    assert [each.name for each in build(make, tables(min_bytes=3200)).plan.tables] == ["0.weight"]
    assert [each.name for each in build(make, tables(min_bytes=0)).plan.tables] == ["0.weight", "1.weight"]
