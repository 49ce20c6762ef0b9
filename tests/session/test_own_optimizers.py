"""Optimizers that are not torch's own: state dicts of their own making, wrappers, odd keys, plain attributes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, Optimizer, SparseAdam

import holdfast as hf
from holdfast.errors import ConfigurationError, HoldfastWarning, ModelMismatch, UnsupportedState
from holdfast.storage import MemoryStore
from tests.tiny import ROWS, Tiny, train_step

SMALL = hf.Settings(buffer_bytes=2**18, frame_bytes=2**16, handle_sigterm=False)
Make = Callable[[Tiny], list[Any]]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def checkpointer(store: MemoryStore, model: nn.Module, optimizers: Any, **changes: Any) -> hf.Checkpointer:
    settings: dict[str, Any] = {"save": hf.EverySteps(3), "strategy": hf.Consecutive(), "overlap": hf.Overlap.WAIT}
    return hf.Checkpointer(store, model=model, optimizer=optimizers, settings=SMALL, **{**settings, **changes})


def plain(optimizers: list[Any]) -> list[Any]:
    return [each.optimizer if isinstance(each, hf.RowLocal) else each for each in optimizers]


def train(store: MemoryStore, make: Make, until: int, *, seed: int = 0) -> tuple[Tiny, list[Any]]:
    torch.manual_seed(seed)
    model = Tiny()
    optimizers = make(model)
    with checkpointer(store, model, optimizers) as guard:
        guard.resume()
        for step in range(guard.steps, until):
            guard.step(loss=train_step(model, plain(optimizers), step))
    return model, plain(optimizers)


def assert_continues_exactly(make: Make) -> None:
    """Interrupted twice or never: the same weights, and what the optimizers go on from."""
    straight, _ = train(MemoryStore(), make, 11)
    store = MemoryStore()
    for until, seed in ((4, 0), (7, 5)):
        train(store, make, until, seed=seed)
    resumed, _ = train(store, make, 11, seed=9)
    for name, weight in straight.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name


class OwnStateDict(SGD):
    """Its rate falls with a counter that only its own state dict holds."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.5)
        self.taken = 0

    def step(self, closure: Any = None) -> None:
        self.taken += 1
        for group in self.param_groups:
            group["lr"] = 0.5 / self.taken
        super().step(closure)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "taken": self.taken}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state_dict = dict(state_dict)
        self.taken = state_dict.pop("taken")
        super().load_state_dict(state_dict)


class Hooked(OwnStateDict):
    """The same by hooks."""

    state_dict = SGD.state_dict
    load_state_dict = SGD.load_state_dict

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.register_state_dict_post_hook(lambda own, state: {**state, "taken": own.taken})
        self.register_load_state_dict_pre_hook(self.take)

    @staticmethod
    def take(own: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        own.taken = state["taken"]  # type: ignore[attr-defined]
        return {key: value for key, value in state.items() if key != "taken"}


class Slow(Optimizer):
    """Weights that follow those of an inner optimizer (Lookahead), with a state dict for both."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner
        self.taken = 0
        super().__init__([{"params": group["params"]} for group in inner.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.inner.step()
        self.taken += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                slow = self.state[parameter].setdefault("slow", parameter.clone())
                if self.taken % 3 == 0:
                    parameter.copy_(slow.lerp_(parameter, 0.5))

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"slow": super().state_dict(), "fast": self.inner.state_dict(), "taken": self.taken}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict["slow"])
        self.inner.load_state_dict(state_dict["fast"])
        self.taken = state_dict["taken"]


class Sharp(Optimizer):
    """Holds another optimizer and forgets it in its state dict, as widespread implementations of SAM do."""

    def __init__(self, inner: Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner
        self.param_groups = inner.param_groups

    def step(self, closure: Any = None) -> None:
        self.inner.step()


def with_top(make: Callable[[list[nn.Parameter]], Any]) -> Make:
    return lambda model: [make(list(model.emb.parameters())), Adam(model.top.parameters())]


OWN = {
    "own state dict": with_top(OwnStateDict),
    "hooks": with_top(Hooked),
    "wrapper": with_top(lambda params: Slow(SparseAdam(params))),
    "wrapper over dense": lambda model: [SparseAdam(list(model.emb.parameters())), Slow(Adam(model.top.parameters()))],
    "forgetful wrapper": with_top(lambda params: Sharp(SparseAdam(params))),
}


@pytest.mark.filterwarnings("ignore::holdfast.errors.HoldfastWarning")
@pytest.mark.parametrize("name", OWN)
def test_state_that_only_the_optimizer_itself_knows_continues_bit_for_bit(name: str) -> None:
    assert_continues_exactly(OWN[name])


def test_fp32_state_of_bf16_tables_survives_a_load_state_dict_that_casts() -> None:
    class Own(Adagrad):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "mine": 1}

    def build() -> tuple[nn.Module, Own]:
        model = nn.Embedding(20, 3, dtype=torch.bfloat16)
        optimizer = Own(model.parameters())
        optimizer.state[model.weight]["sum"] = torch.full((20, 3), 1 + 2**-20)
        return model, optimizer

    store = MemoryStore()
    for _ in range(2):
        model, optimizer = build()
        with checkpointer(store, model, optimizer) as guard:
            guard.resume()
            guard.save(wait=True)
        total = optimizer.state[model.weight]["sum"]
        assert total.dtype == torch.float32 and torch.equal(total, torch.full((20, 3), 1 + 2**-20))


@pytest.mark.filterwarnings("ignore::holdfast.errors.HoldfastWarning")
def test_steps_of_an_optimizer_inside_count_where_its_wrapper_runs_no_hook() -> None:
    model = Tiny()
    wrapper = Sharp(SGD(model.parameters(), lr=0.1))
    store = MemoryStore()
    with checkpointer(store, model, wrapper) as guard:
        for step in range(3):
            guard.step(loss=train_step(model, [wrapper.inner], step))
        assert guard.steps == 3
    again = Tiny()
    hf.open_run(store).restore(model=again)
    assert all(map(torch.equal, model.parameters(), again.parameters()))


@pytest.mark.filterwarnings("ignore::holdfast.errors.HoldfastWarning")
def test_an_optimizer_that_refuses_its_state_is_named() -> None:
    class Refuses(OwnStateDict):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            raise ValueError("not mine")

    store = MemoryStore()
    train(store, with_top(Refuses), 2)
    with pytest.raises(ModelMismatch, match=r"Refuses rejected its state: ValueError\('not mine'\)"):
        train(store, with_top(Refuses), 3)


def test_a_state_dict_that_fails_or_needs_code_is_refused_at_construction() -> None:
    class Fails(SGD):
        def state_dict(self) -> dict[str, Any]:
            raise RuntimeError("consolidate first")

    class Odd(SGD):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "callback": lambda: None}

    for kind, message in ((Fails, "consolidate first"), (Odd, r"\['callback'\] is a function")):
        model = Tiny()
        with pytest.raises(UnsupportedState, match=message):
            checkpointer(MemoryStore(), model, kind(model.parameters(), lr=0.1))


KEYS = [
    "weight",
    "ids",
    "sum.escapes",
    "slot x",
    "",
    "\ud800",
    3,
    2.5,
    None,
    ("a", 1),
    ("a", (2, b"c")),
    frozenset({1}),
]


class OddKeys(Optimizer):
    """A slot under each of these keys, and numbers under others, of types that cannot be sorted."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            for number, key in enumerate(KEYS):
                slot = state.setdefault(key, torch.zeros(len(parameter)))
                slot += (1 + number) * parameter.grad.to_dense().sum(dim=1)
                parameter -= 0.01 * slot.unsqueeze(1)
            state["count"] = state[7] = state.get(7, 0) + 1


@pytest.mark.filterwarnings("ignore::holdfast.errors.HoldfastWarning")
@pytest.mark.parametrize("precision", [hf.Exact(), hf.Bits(8)])
def test_slots_under_any_key_are_stored_and_come_back_under_it(precision: Any) -> None:
    store = MemoryStore()
    model = Tiny()
    optimizer = OddKeys(model.emb.parameters())
    with checkpointer(store, model, optimizer, precision=precision) as guard:
        for step in range(4):
            guard.step(loss=train_step(model, [optimizer], step))
    again = Tiny()
    other = OddKeys(again.emb.parameters())
    hf.open_run(store).restore(model=again, optimizer=other)
    for left, right in zip(model.emb.parameters(), again.emb.parameters(), strict=True):
        assert other.state[right].keys() == optimizer.state[left].keys()
        assert other.state[right][7] == 4
        for key in KEYS:
            close = {"atol": 0.0, "rtol": 0.0 if precision == hf.Exact() else 0.01}
            torch.testing.assert_close(other.state[right][key], optimizer.state[left][key], **close)
    names = hf.open_run(store).read_rows("emb.0", [0]).keys()
    assert {"weight", 'slot "weight"', 'slot "ids"', 'slot {"tuple":["a",1]}'} <= names


def test_state_that_appears_with_the_first_step_and_cannot_be_stored_is_refused_there() -> None:
    class Late(SGD):
        def step(self, closure: Any = None) -> None:
            super().step(closure)
            self.state[self.param_groups[0]["params"][0]]["helper"] = object()

    model = Tiny()
    optimizers = [SparseAdam(list(model.emb.parameters())), Late(model.top.parameters())]
    with checkpointer(MemoryStore(), model, optimizers, save=hf.EverySteps(1000)) as guard:
        with pytest.raises(UnsupportedState, match=r"Late\['state'\]\['top.weight'\]\['helper'\] is a object"):
            train_step(model, optimizers, 0)
        optimizers[1].state.clear()
        guard.step()


class RowWise(Optimizer):
    """Row-wise Adagrad as recommendation models have it, with a flag in a plain attribute."""

    def __init__(self, params: Any, *, spills: bool = False) -> None:
        super().__init__(params, {"lr": 0.1})
        self.started = False
        self.spills = spills

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            gradient = parameter.grad.coalesce()
            ids, values = gradient.indices()[0], gradient.values()
            total = self.state[parameter].setdefault("momentum", torch.zeros(len(parameter)))
            if not self.started:
                total.fill_(1e-3)
            total.index_add_(0, ids, values.square().mean(dim=1))
            parameter.index_add_(0, ids, -0.1 * values / total[ids].sqrt().unsqueeze(1))
            if self.spills:
                parameter.mul_(0.999)
        self.started = True


def test_an_attribute_that_changed_and_is_in_no_state_dict_is_warned_about_once() -> None:
    model = Tiny()
    optimizers = [RowWise(model.emb.parameters()), Adam(model.top.parameters())]
    with checkpointer(MemoryStore(), model, [hf.RowLocal(optimizers[0]), optimizers[1]]) as guard:
        with pytest.warns(HoldfastWarning, match=r"RowWise\.started has changed .* in no state dict"):
            guard.step(loss=train_step(model, optimizers, 0))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for step in range(1, 7):
                guard.step(loss=train_step(model, optimizers, step))


def test_attributes_that_the_state_dict_holds_or_that_torch_changes_are_not_warned_about() -> None:
    model = Tiny()
    optimizers = [Adam(model.top.parameters()), OwnStateDict(model.emb.parameters())]
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizers[1], 0.9)
    with (
        checkpointer(MemoryStore(), model, optimizers, extra={"scheduler": scheduler}) as guard,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        for step in range(4):
            guard.step(loss=train_step(model, optimizers, step))
            scheduler.step()
    assert not [each for each in caught if "state dict" in str(each.message)]


@pytest.mark.filterwarnings("ignore:RowWise.started")
def test_an_optimizer_declared_row_local_gives_deltas() -> None:
    store = MemoryStore()

    class Started(RowWise):
        def __init__(self, params: Any) -> None:
            super().__init__(params)
            self.started = True

    make = with_top(lambda params: hf.RowLocal(Started(params)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", HoldfastWarning)
        model, optimizers = train(store, make, 9)
    infos = hf.open_run(store).checkpoints()
    assert infos[-1].rows_written < sum(ROWS) / 2
    again = Tiny()
    others = plain(make(again))
    hf.open_run(store).restore(model=again, optimizer=others)
    for left, right in zip(model.emb.parameters(), again.emb.parameters(), strict=True):
        assert torch.equal(left, right)
        assert torch.equal(optimizers[0].state[left]["momentum"], others[0].state[right]["momentum"])


@pytest.mark.filterwarnings("ignore:RowWise.started")
def test_a_declaration_that_is_not_true_is_found_out_and_costs_no_row() -> None:
    store = MemoryStore()
    make = with_top(lambda params: hf.RowLocal(RowWise(params, spills=True)))
    with pytest.warns(HoldfastWarning, match="hf.RowLocal was declared, but a step moved rows without a gradient"):
        model, _ = train(store, make, 9)
    again, _ = train(store, make, 9, seed=3)
    assert all(map(torch.equal, model.parameters(), again.parameters()))


def test_a_parameter_with_sparse_gradients_that_is_no_table_is_hinted_at() -> None:
    class Quotients(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight_q = nn.Parameter(torch.rand(30, 2))

        def forward(self, ids: Tensor) -> Tensor:
            return nn.functional.embedding(ids, self.weight_q, sparse=True)

    model = nn.ModuleDict({"qr": Quotients()})
    optimizer = SGD(model.parameters(), lr=0.1)

    def step(guard: hf.Checkpointer) -> None:
        optimizer.zero_grad()
        model["qr"](torch.tensor([1, 2])).sum().backward()
        optimizer.step()
        guard.step()

    hint = pytest.warns(
        HoldfastWarning, match=r"'qr.weight_q' receives sparse gradients but is in no nn.Embedding.*tables="
    )
    with checkpointer(MemoryStore(), model, optimizer) as guard, hint:
        step(guard)
    declared = {"q": model["qr"].weight_q}
    with checkpointer(MemoryStore(), model, optimizer, tables=declared) as guard, warnings.catch_warnings():
        warnings.simplefilter("error")
        step(guard)


def test_accelerated_and_lightning_optimizers_are_unwrapped() -> None:
    from accelerate import Accelerator
    from lightning.pytorch.core.optimizer import LightningOptimizer

    accelerator = Accelerator(cpu=True)
    for wrap in (accelerator.prepare_optimizer, LightningOptimizer):
        store = MemoryStore()

        def make(model: Tiny, wrap: Any = wrap) -> list[Any]:
            return [wrap(SparseAdam(list(model.emb.parameters()))), Adam(model.top.parameters())]

        with warnings.catch_warnings():
            warnings.simplefilter("error", HoldfastWarning)
            model, optimizers = train_unwrapped(store, make)
        assert hf.open_run(store).checkpoints()[-1].rows_written < sum(ROWS) / 2
        again = Tiny()
        others = make(again)
        hf.open_run(store).restore(model=again, optimizer=others)
        moments = [
            each.state[model_.emb[0].weight]["exp_avg"] for each, model_ in ((optimizers[0], model), (others[0], again))
        ]
        assert torch.equal(*moments) and moments[0].any()


def train_unwrapped(store: MemoryStore, make: Make) -> tuple[Tiny, list[Any]]:
    """Lightning's wrapper steps only with a trainer around it."""
    from lightning.pytorch.core.optimizer import LightningOptimizer

    model = Tiny()
    optimizers = make(model)
    with checkpointer(store, model, optimizers) as guard:
        for step in range(7):
            steppers = [each.optimizer if isinstance(each, LightningOptimizer) else each for each in optimizers]
            guard.step(loss=train_step(model, steppers, step))
    return model, optimizers


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="optimizer= takes"):
        checkpointer(MemoryStore(), Tiny(), object())
