from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.swa_utils import AveragedModel

from holdfast.checkpoint.training.state import RestoreReport, TrainingState, dense_weights
from holdfast.checkpoint.training.tables import find_tables
from holdfast.errors import ConfigurationError, ModelMismatch, UnsupportedState
from holdfast.format.tree import EncodedTree, decode_tree, encode_tree
from holdfast.types import ColumnSpec

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
ROWS = 7


class Net(nn.Module):
    """A table, a tied pair of it, a buffer that moves, and a dense part."""

    def __init__(self, *, sparse: bool = False, width: int = 4) -> None:
        super().__init__()
        self.emb = nn.Embedding(ROWS, width, sparse=sparse)
        self.norm = nn.BatchNorm1d(width)
        self.hidden = nn.Linear(width, 3)
        self.out = nn.Linear(3, 1, bias=False)
        self.again = self.hidden  # tied: stored once
        self.register_buffer("cache", torch.zeros(2), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(self.norm(self.emb(ids))))).sum()


class Loop:
    """A training loop as a user writes it, and what a checkpoint keeps of it."""

    def __init__(
        self,
        make: Callable[[nn.Module], Sequence[Optimizer]],
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        sparse: bool = False,
        extra: Callable[[nn.Module, Sequence[Optimizer]], dict[str, Any]] = lambda model, optimizers: {},
    ) -> None:
        torch.manual_seed(seed)
        self.model = Net(sparse=sparse).to(dtype)
        self.optimizers = make(self.model)
        self.extra = extra(self.model, self.optimizers)
        self.tables = find_tables({"": self.model}, self.optimizers)
        self.state = TrainingState({"": self.model}, self.optimizers, self.extra, self.tables)

    def train(self, steps: range) -> None:
        for step in steps:
            torch.manual_seed(1000 + step)
            ids = torch.randint(0, ROWS, (5,))

            def closure(ids: Tensor = ids) -> Tensor:
                for optimizer in self.optimizers:
                    optimizer.zero_grad()
                loss = self.model(ids)
                loss.backward()
                return loss

            loss = closure()
            for optimizer in self.optimizers:
                optimizer.step(closure if isinstance(optimizer, torch.optim.LBFGS) else None)
            for extra in self.extra.values():
                _advance(extra, self.model, loss)

    def save(self) -> tuple[EncodedTree, dict[str, Any]]:
        tree = encode_tree(self.state.capture())
        rows = {t.name: (t.spec(), copy.deepcopy([t.parameter.data, t.slots()])) for t in self.tables}
        return EncodedTree(skeleton=tree.skeleton, tensors=[tensor.clone() for tensor in tree.tensors]), rows

    def restore(self, saved: tuple[EncodedTree, dict[str, Any]], *, strict: bool = True) -> RestoreReport:
        tree, rows = saved
        report = self.state.restore(decoded(tree), strict=strict)
        for table in self.tables:
            spec, (weight, slots) = rows[table.name]
            table.parameter.data.copy_(weight)
            for name, tensor in self.state.ensure_slots(table, spec.slots).items():
                tensor.copy_(slots[name])
        self.state.finish(strict=strict)
        return report

    def everything(self) -> dict[str, Any]:
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        return {
            "model": dict(self.model.state_dict()),
            "state": [
                {names[id(parameter)]: state for parameter, state in optimizer.state.items()}
                for optimizer in self.optimizers
            ],
            "groups": [
                [{key: group[key] for key in group if key != "params"} for group in optimizer.param_groups]
                for optimizer in self.optimizers
            ],
            "extra": {
                name: value.get_state() if isinstance(value, torch.Generator) else value.state_dict()
                for name, value in self.extra.items()
            },
        }


def decoded(tree: EncodedTree) -> Any:
    return decode_tree(tree.skeleton, tree.tensors)


def _advance(extra: Any, model: nn.Module, loss: Tensor) -> None:
    if isinstance(extra, AveragedModel):
        extra.update_parameters(model)
    elif isinstance(extra, lr_scheduler.ReduceLROnPlateau):
        extra.step(loss.item())
    elif isinstance(extra, lr_scheduler.LRScheduler):
        extra.step()
    elif isinstance(extra, torch.amp.GradScaler):
        extra.scale(loss.detach())
        extra._growth_tracker += 1
    elif isinstance(extra, torch.Generator):
        torch.rand(3, generator=extra)


def assert_same(left: Any, right: Any, path: str = "") -> None:
    """Equal in every bit and in kind: an int is no tensor, fp32 no bf16."""
    assert type(left) is type(right), f"{path}: {type(left)} is not {type(right)}"
    if isinstance(left, Tensor):
        assert (left.dtype, left.shape, left.layout) == (right.dtype, right.shape, right.layout), path
        left, right = (left.to_dense(), right.to_dense()) if left.is_sparse else (left, right)
        assert torch.equal(left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8)), path
    elif isinstance(left, dict):
        assert set(left) == set(right), f"{path}: {set(left) ^ set(right)}"
        for key in left:
            assert_same(left[key], right[key], f"{path}[{key!r}]")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), path
        for index, pair in enumerate(zip(left, right, strict=True)):
            assert_same(*pair, f"{path}[{index}]")
    else:
        assert left == right, path


def assert_continues_exactly(make: Callable[..., Loop]) -> None:
    """Saved after any step, restored into a fresh loop or into one that went on, and trained on: the same bits."""
    straight = make(seed=0)
    saves = []
    for step in range(4):
        saves.append(straight.save())
        straight.train(range(step, step + 1))
    for step, saved in enumerate(saves):
        resumed = make(seed=5)
        resumed.restore(saved)
        resumed.train(range(step, 4))
        assert_same(resumed.everything(), straight.everything(), f"from step {step}: ")
    gone_back = make(seed=6)
    gone_back.train(range(10, 12))
    for step in (2, 0):
        gone_back.restore(saves[step])
        gone_back.train(range(step, 4))
        assert_same(gone_back.everything(), straight.everything(), f"back to step {step}: ")


def dense_only(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for name, parameter in model.named_parameters() if name != "emb.weight"]


def matrices(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.dim() == 2]


DENSE = {
    kind.__name__: kind
    for kind in vars(torch.optim).values()
    if isinstance(kind, type) and issubclass(kind, Optimizer) and kind not in (Optimizer, torch.optim.SparseAdam)
}


@pytest.mark.parametrize("kind", DENSE)
def test_every_optimizer_continues_bit_for_bit(kind: str) -> None:
    def make(model: nn.Module) -> list[Optimizer]:
        if kind == "Muon":
            return [torch.optim.Muon(matrices(model))]
        if kind == "LBFGS":
            return [torch.optim.LBFGS(model.parameters(), lr=0.05, max_iter=3)]
        return [DENSE[kind](model.parameters(), lr=0.05)]

    assert_continues_exactly(lambda seed: Loop(make, seed=seed))


VARIANTS: dict[str, Callable[[nn.Module], list[Optimizer]]] = {
    "Adam amsgrad": lambda m: [torch.optim.Adam(m.parameters(), amsgrad=True)],
    "Adam with a tensor lr": lambda m: [torch.optim.Adam(m.parameters(), lr=torch.tensor(0.1), foreach=False)],
    "Adam fused": lambda m: [torch.optim.Adam(m.parameters(), fused=True)],
    "SGD momentum": lambda m: [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True)],
    "RMSprop centered": lambda m: [torch.optim.RMSprop(m.parameters(), centered=True, momentum=0.5)],
    "groups": lambda m: [
        torch.optim.AdamW([{"params": matrices(m), "lr": 0.1}, {"params": [m.hidden.bias], "weight_decay": 0.0}])
    ],
    "two optimizers": lambda m: [torch.optim.Adagrad([m.emb.weight]), torch.optim.Adam(dense_only(m))],
    "frozen table": lambda m: [torch.optim.Adam(dense_only(m))],
}
SPARSE: dict[str, Callable[[nn.Module], list[Optimizer]]] = {
    "SparseAdam": lambda m: [torch.optim.SparseAdam([m.emb.weight]), torch.optim.Adam(dense_only(m))],
    "SGD": lambda m: [torch.optim.SGD(m.parameters(), lr=0.1)],
    "SGD momentum": lambda m: [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)],
    "Adagrad": lambda m: [torch.optim.Adagrad(m.parameters(), initial_accumulator_value=0.1)],
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_continue_bit_for_bit(name: str) -> None:
    assert_continues_exactly(lambda seed: Loop(VARIANTS[name], seed=seed))


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_gradients_continue_bit_for_bit(name: str) -> None:
    assert_continues_exactly(lambda seed: Loop(SPARSE[name], seed=seed, sparse=True))


def test_fp32_state_of_bf16_parameters_stays_fp32() -> None:
    class Fp32Momentum(Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure: None = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                if parameter.grad is not None:
                    buffer = self.state[parameter].setdefault("momentum", torch.zeros(parameter.shape))
                    buffer.mul_(0.9).add_(parameter.grad)
                    parameter.sub_(0.1 * buffer)

    assert_continues_exactly(
        lambda seed: Loop(lambda m: [Fp32Momentum(m.parameters())], seed=seed, dtype=torch.bfloat16)
    )


def schedulers(model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, Any]:
    (optimizer,) = optimizers
    return {
        "one cycle": lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=20),
        "multi step": lr_scheduler.MultiStepLR(optimizer, [1, 3]),
        "lambda": lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
        "cosine": lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3),
        "plateau": lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
        "sequential": lr_scheduler.SequentialLR(
            optimizer, [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)], [2]
        ),
        "cyclic": lr_scheduler.CyclicLR(optimizer, 0.01, 0.1),
    }


def others(model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, Any]:
    return {
        "average": AveragedModel(model),
        "scaler": torch.amp.GradScaler("cpu", init_scale=4.0),
        "generator": torch.Generator().manual_seed(3),
        "metric": nn.BatchNorm1d(2),
    }


@pytest.mark.parametrize("extra", [schedulers, others])
def test_extras_continue_bit_for_bit(extra: Any) -> None:
    def sgd(model: nn.Module) -> list[Optimizer]:
        return [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)]

    assert_continues_exactly(lambda seed: Loop(sgd, seed=seed, extra=extra))


def adam(model: nn.Module) -> list[Optimizer]:
    return [torch.optim.Adam(model.parameters(), lr=0.05)]


def test_capture_holds_live_tensors_and_no_table_rows() -> None:
    loop = Loop(adam)
    loop.train(range(1))
    tree = loop.state.capture()
    assert dense_weights(tree)["hidden.weight"] is loop.model.hidden.weight
    assert "emb.weight" not in tree["model"] and "cache" not in tree["model"]
    assert "again.weight" not in tree["model"]
    saved = tree["optimizers"][0]
    assert set(saved["state"]["emb.weight"]) == {"step"}
    assert saved["tables"]["emb.weight"]["slots"] == ["exp_avg", "exp_avg_sq"]


def test_restore_writes_into_the_tensors_others_hold() -> None:
    loop = Loop(adam)
    loop.train(range(2))
    saved = loop.save()
    loop.train(range(2, 4))
    held = [loop.model.hidden.weight, loop.model.norm.running_mean]
    held += [t for state in loop.optimizers[0].state.values() for t in state.values()]
    pointers = [tensor.data_ptr() for tensor in held]
    loop.restore(saved)
    now = [loop.model.hidden.weight, loop.model.norm.running_mean]
    now += [t for state in loop.optimizers[0].state.values() for t in state.values()]
    assert {tensor.data_ptr() for tensor in now} == set(pointers)


def test_wrappers_leave_no_trace_in_the_names() -> None:
    plain, wrapped = Net(), nn.DataParallel(AveragedModel(Net()))
    for model in (plain, wrapped):
        optimizer = torch.optim.Adam(model.parameters())
        tables = find_tables({"": model}, [optimizer])
        names = set(TrainingState({"": model}, [optimizer], {}, tables).capture()["optimizers"][0]["state"])
        assert names == {name for name, _ in Net().named_parameters()}


def test_models_given_by_name_and_sharing_a_module_are_stored_once() -> None:
    left, right = Net(), Net()
    right.hidden = left.hidden
    tree = TrainingState({"a": left, "b": right}, [], {}, find_tables({"a": left, "b": right})).capture()
    assert "a.hidden.weight" in tree["model"] and "b.hidden.weight" not in tree["model"]
    assert "b.out.weight" in tree["model"]


class WithExtraState(nn.Linear):
    seen = 0

    def get_extra_state(self) -> Any:
        return {"seen": self.seen}

    def set_extra_state(self, state: Any) -> None:
        self.seen = state["seen"]


def test_modules_keep_their_extra_state() -> None:
    model, other = nn.Sequential(WithExtraState(2, 2)), nn.Sequential(WithExtraState(2, 2))
    model[0].seen = 7
    TrainingState({"": other}, [], {}, ()).restore(TrainingState({"": model}, [], {}, ()).capture())
    assert other[0].seen == 7


@pytest.mark.parametrize("fused", [False, True])
def test_step_counts_live_where_the_optimizer_puts_them(fused: bool) -> None:
    loop = Loop(lambda model: [torch.optim.Adam(model.parameters(), fused=fused)])
    loop.train(range(1))
    resumed = Loop(lambda model: [torch.optim.Adam(model.parameters(), fused=not fused)])
    resumed.restore(loop.save())
    assert resumed.optimizers[0].param_groups[0]["fused"] is not fused
    resumed.train(range(1, 2))


def other_width(model: nn.Module) -> None:
    model.hidden = model.again = nn.Linear(4, 9)


def other_dtype(model: nn.Module) -> None:
    model.hidden.double()


def other_name(model: nn.Module) -> None:
    model.renamed = model.out
    del model.out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_width, r"hidden.weight is float32\[9, 4\], but float32\[3, 4\] in the checkpoint"),
        (other_dtype, r"hidden.weight is float64\[3, 4\], but float32\[3, 4\] in the checkpoint"),
        (other_name, r"in the model but not in the checkpoint: renamed.weight; in the checkpoint .*: out.weight"),
    ],
)
def test_a_changed_model_is_named_and_nothing_is_written(change: Any, message: str) -> None:
    saved = Loop(adam).save()
    model = Net()
    change(model)
    before = copy.deepcopy(model.state_dict())
    state = TrainingState({"": model}, adam(model), {}, find_tables({"": model}, ()))
    with pytest.raises(ModelMismatch, match=message):
        state.restore(decoded(saved[0]))
    assert_same(dict(model.state_dict()), dict(before))


def test_restore_that_is_not_strict_takes_what_fits_and_reports_the_rest() -> None:
    source = Loop(adam)
    source.train(range(2))
    model = Net()
    other_width(model)
    model.norm.double()
    other_name(model)
    optimizers = adam(model)
    state = TrainingState({"": model}, optimizers, {}, find_tables({"": model}, optimizers))
    before = model.hidden.weight.clone()
    report = state.restore(decoded(source.save()[0]), strict=False)
    assert report.missing == ("renamed.weight",) and report.unexpected == ("out.weight",)
    assert report.changed[0].startswith("hidden.weight is float32[9, 4]")
    assert torch.equal(model.hidden.weight, before) and model.hidden.weight not in optimizers[0].state
    assert torch.equal(model.norm.weight, source.model.norm.weight.double())
    assert optimizers[0].state[model.norm.weight]["exp_avg"].dtype == torch.float32


def mismatch(make: Callable[[nn.Module], list[Optimizer]]) -> str:
    loop = Loop(make)
    with pytest.raises(ModelMismatch) as caught:
        loop.restore(Loop(VARIANTS["groups"]).save())
    return str(caught.value)


def test_a_changed_optimizer_is_named() -> None:
    assert "SGD was a AdamW" in mismatch(lambda m: [torch.optim.SGD(m.parameters())])
    assert "1 parameter groups, but 2 in the checkpoint" in mismatch(lambda m: [torch.optim.AdamW(m.parameters())])
    assert "group 1, differs in its parameters hidden.bias, norm.bias" in mismatch(
        lambda m: [torch.optim.AdamW([{"params": matrices(m)}, {"params": [m.norm.bias]}])]
    )
    assert "optimizer 1" in mismatch(lambda m: [*VARIANTS["groups"](m), torch.optim.SGD([m.norm.bias])])


def test_slots_of_another_optimizer_are_left_alone_when_not_strict() -> None:
    saved = Loop(SPARSE["Adagrad"], sparse=True).save()
    loop = Loop(SPARSE["SparseAdam"], sparse=True)
    loop.train(range(1))
    report = loop.restore(saved, strict=False)
    assert "optimizer state of emb.weight (saved by Adagrad, now SparseAdam)" in report.changed
    assert set(loop.tables[0].slots()) == {"exp_avg", "exp_avg_sq"}
    loop.train(range(1, 2))


def test_a_model_alone_can_be_restored_from_a_checkpoint_of_everything() -> None:
    source = Loop(adam, extra=others)
    source.train(range(2))
    model = Net()
    tables = find_tables({"": model})
    state = TrainingState({"": model}, [], {}, tables)
    tree, rows = source.save()
    assert state.restore(decoded(tree)) == RestoreReport()
    assert state.ensure_slots(tables[0], rows["emb"][0].slots) == {}
    assert torch.equal(model.hidden.weight, source.model.hidden.weight)


def test_slots_are_created_replaced_and_removed_to_be_the_checkpoints() -> None:
    loop = Loop(SPARSE["SparseAdam"], sparse=True)
    (table,) = loop.tables
    sums = ColumnSpec(name="sum", dtype="BF16", row_shape=())
    created = loop.state.ensure_slots(table, [sums])["sum"]
    assert created.dtype == torch.bfloat16 and created.shape == (ROWS,) and not created.any()
    assert loop.state.ensure_slots(table, [sums])["sum"] is created
    wider = ColumnSpec(name="sum", dtype="F32", row_shape=(4,))
    assert loop.state.ensure_slots(table, [wider])["sum"].shape == (ROWS, 4)
    assert loop.state.ensure_slots(table, []) == {}
    assert table.parameter not in loop.optimizers[0].state


def test_an_extra_that_refuses_its_state_is_named() -> None:
    saved = Loop(adam, extra=lambda m, o: {"metric": nn.Linear(2, 2)}).save()
    changed = Loop(adam, extra=lambda m, o: {"metric": nn.Linear(3, 2)})
    with pytest.raises(ModelMismatch, match="extra 'metric' rejected its state"):
        changed.restore(saved)
    assert any("'metric'" in line for line in changed.restore(saved, strict=False).changed)


def test_extras_that_came_or_went_are_named() -> None:
    saved = Loop(adam, extra=lambda m, o: {"a": torch.Generator()}).save()
    with pytest.raises(ModelMismatch, match=r"not in the checkpoint: extra 'b'; .*: extra 'a'"):
        Loop(adam, extra=lambda m, o: {"b": torch.Generator()}).restore(saved)


@pytest.mark.parametrize("value", [{"step": 1}, 0.5, lambda: None])
def test_an_extra_without_state_is_refused_by_name(value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"extra 'thing' is a .* without state_dict\(\)"):
        TrainingState({}, [], {"thing": value}, ())


def test_an_optimizer_is_no_extra() -> None:
    with pytest.raises(ConfigurationError, match="optimizer="):
        TrainingState({}, [], {"o": torch.optim.SGD([torch.ones(1)])}, ())


def test_a_parameter_of_no_model_is_refused() -> None:
    model, stray = Net(), nn.Parameter(torch.ones(2, 3))
    state = TrainingState({"": model}, [torch.optim.SGD([*model.parameters(), stray])], {}, ())
    with pytest.raises(ConfigurationError, match=r"shape \(2, 3\) that belongs to no model"):
        state.check()


def test_state_that_needs_code_is_refused_by_its_path_before_training() -> None:
    class Schedule:
        def state_dict(self) -> Any:
            return {"lambda": lambda step: 1.0}

        def load_state_dict(self, state: Any) -> None: ...

    state = TrainingState({}, [], {"scheduler": Schedule()}, ())
    with pytest.raises(UnsupportedState, match=r"state\['extra'\]\['scheduler'\]\['lambda'\] is a function"):
        state.check()


def test_what_torch_offers_is_accepted_before_training() -> None:
    for make in (*VARIANTS.values(),):
        Loop(make, extra=others).state.check()
    Loop(VARIANTS["SGD momentum"], extra=schedulers).state.check()


def test_what_an_optimizer_counts_once_for_all_rows_is_no_slot() -> None:
    loop = Loop(lambda model: [torch.optim.Adam(model.parameters())])
    loop.train(range(3))
    (table,) = loop.tables
    moments, steps = (4,), ()
    columns = [("exp_avg", moments), ("exp_avg_sq", moments), ("step", steps)]  # as servers keep them
    slots = loop.state.ensure_slots(table, [ColumnSpec(name=name, dtype="F32", row_shape=row) for name, row in columns])
    assert slots.keys() == {"exp_avg", "exp_avg_sq"}
    assert loop.optimizers[0].state[table.parameter]["step"] == 3
