"""Ways to train a table: every optimizer of torch.optim, sparse and dense, in the situations that could hide a change.

A case builds a model and its optimizers, and trains it a little at a time. Whoever takes copies in between can compare:
a row or slot that differs must have been tracked; where ``gives_deltas``, some rows must not have been.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.optim import Optimizer

ROWS, DIM, BATCH = 200, 8, 5

Depth: TypeAlias = Literal["shallow", "middle", "deep"]  # a rule meets the situations that are not deeper than itself
DEPTHS = ("shallow", "middle", "deep")
Mark: TypeAlias = Callable[[str, "Tensor | None"], None]
Step: TypeAlias = Callable[["Training", int, Mark], None]


class Net(nn.Module):
    """One table, looked up in one of several ways, and a dense head."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        kind = nn.EmbeddingBag if options.pop("bag", False) else nn.Embedding
        self.lookup = options.pop("lookup", "module")
        dtype = options.pop("dtype", torch.float32)
        self.emb = kind(ROWS, DIM, **options)
        self.emb.to(dtype)
        self.other: nn.Module | None = None
        self.out = nn.Linear(DIM, ROWS)
        self.head = nn.Linear(DIM, 1)

    def forward(self, ids: Tensor) -> Tensor:
        if self.lookup == "functional":
            rows = F.embedding(ids, self.emb.weight, sparse=self.emb.sparse, max_norm=self.emb.max_norm)
        elif self.lookup == "forward":
            rows = self.emb.forward(ids)
        else:
            rows = self.emb(ids)
        rows = rows.float()
        if self.other is not None:
            rows = rows + self.other(ids.flip(0))
        loss = self.head(rows.sin()).square().mean()
        return loss + self.out(rows).sin().mean() if self.lookup == "tied" else loss


@dataclass
class Training:
    """A model in training, and the means to go on."""

    model: nn.Module
    optimizers: list[Optimizer]
    step: Step
    rank: int = 0
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def net(self) -> Net:
        """The model without its wrappers."""
        return self.model.module if isinstance(self.model, nn.parallel.DistributedDataParallel) else self.model

    @property
    def device_type(self) -> str:
        return self.net.emb.weight.device.type

    def ids(self, number: int) -> Tensor:
        """A batch of row ids; each number and rank has its own."""
        generator = torch.Generator().manual_seed(1000 * self.rank + number)
        ids = torch.randint(1, ROWS, (BATCH,), generator=generator).to(self.net.emb.weight.device)
        return ids.view(1, -1).repeat(2, 1) if isinstance(self.net.emb, nn.EmbeddingBag) else ids

    def backward(self, number: int) -> Tensor:
        """Add one batch's gradient."""
        loss = self.model(self.ids(number))
        loss.backward()
        return loss

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step_optimizers(self, number: int) -> None:
        """Step with the gradient that is there; LBFGS, which cannot, computes its own."""
        for optimizer in self.optimizers:
            if isinstance(optimizer, optim.LBFGS):
                optimizer.step(lambda: self.backward_again(number))
            else:
                optimizer.step()

    def backward_again(self, number: int) -> Tensor:
        self.zero_grad()
        return self.backward(number)

    def train(self, number: int, mark: Mark) -> None:
        """Go on for one batch."""
        self.step(self, number, mark)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """An optimizer of torch.optim with settings, the gradients it takes, and those with which it is row-local."""

    name: str
    make: Callable[[list[nn.Parameter]], Optimizer]
    takes: frozenset[str]
    row_local: frozenset[str]
    depth: Depth


@dataclass(frozen=True, kw_only=True)
class Situation:
    """How the table is used; ``gives_deltas`` if a row-local optimizer then leaves most rows alone."""

    name: str
    step: Step
    options: dict[str, Any] = field(default_factory=dict)
    arrange: Callable[[Training], None] = lambda training: None
    gives_deltas: bool = True
    gradients: frozenset[str] = frozenset({"sparse", "dense"})
    depth: Depth = "deep"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One rule, one kind of gradient, one situation."""

    rule: Rule
    gradient: str
    situation: Situation

    @property
    def name(self) -> str:
        return f"{self.rule.name}-{self.gradient}-{self.situation.name}"

    @property
    def gives_deltas(self) -> bool:
        return self.situation.gives_deltas and self.gradient in self.rule.row_local

    def build(self, rank: int = 0, device: str = "cpu") -> Training:
        """The same model, whoever builds it."""
        torch.manual_seed(7)
        net = Net(sparse=self.gradient == "sparse", **self.situation.options).to(device)
        training = Training(model=net, optimizers=[], step=self.situation.step, rank=rank)
        self.situation.arrange(training)
        own = [*net.head.parameters(), *(p for p in net.out.parameters() if p is not net.emb.weight)]
        training.optimizers += [self.rule.make([net.emb.weight]), optim.SGD(own, lr=0.1)]
        return training


BOTH, SPARSE, DENSE = frozenset({"sparse", "dense"}), frozenset({"sparse"}), frozenset({"dense"})


def rule(name: str, kind: type[Optimizer], takes: frozenset[str], row_local: frozenset[str], **settings: Any) -> Rule:
    if settings:
        depth: Depth = "shallow"  # a variant
    else:
        depth = "deep" if row_local else "middle"
    make = lambda parameters: kind(parameters, **{"lr": 0.1, **settings})  # noqa: E731
    return Rule(name=name, make=make, takes=takes, row_local=row_local, depth=depth)


NONE: frozenset[str] = frozenset()
RULES = (
    rule("SGD", optim.SGD, BOTH, BOTH),
    rule("SGD_single", optim.SGD, BOTH, BOTH, foreach=False),
    rule("SGD_foreach", optim.SGD, BOTH, BOTH, foreach=True),
    rule("SGD_fused", optim.SGD, DENSE, DENSE, fused=True),
    rule("SGD_tensor_lr", optim.SGD, BOTH, BOTH, lr=torch.tensor(0.1)),
    rule("SGD_lr_zero", optim.SGD, BOTH, BOTH, lr=0.0),
    rule("SGD_lr_integer_zero", optim.SGD, BOTH, SPARSE, lr=0),
    rule("SGD_maximize", optim.SGD, BOTH, SPARSE, maximize=True),
    rule("SGD_momentum", optim.SGD, BOTH, NONE, momentum=0.9),
    rule("SGD_nesterov", optim.SGD, DENSE, NONE, momentum=0.9, nesterov=True),
    rule("SGD_weight_decay", optim.SGD, DENSE, NONE, weight_decay=0.1),
    rule("Adagrad", optim.Adagrad, BOTH, BOTH),
    rule("Adagrad_single", optim.Adagrad, BOTH, BOTH, foreach=False),
    rule("Adagrad_foreach", optim.Adagrad, BOTH, BOTH, foreach=True),
    rule("Adagrad_fused", optim.Adagrad, DENSE, DENSE, fused=True),
    rule("Adagrad_lr_decay", optim.Adagrad, BOTH, BOTH, lr_decay=0.1, initial_accumulator_value=0.5),
    rule("Adagrad_maximize", optim.Adagrad, BOTH, SPARSE, maximize=True),
    rule("Adagrad_eps_zero", optim.Adagrad, BOTH, SPARSE, eps=0.0),
    rule("Adagrad_weight_decay", optim.Adagrad, DENSE, NONE, weight_decay=0.1),
    rule("SparseAdam", optim.SparseAdam, SPARSE, SPARSE),
    rule("SparseAdam_maximize", optim.SparseAdam, SPARSE, SPARSE, maximize=True),
    rule("Adam", optim.Adam, DENSE, NONE),
    rule("Adam_fused", optim.Adam, DENSE, NONE, fused=True),
    rule("Adam_amsgrad", optim.Adam, DENSE, NONE, amsgrad=True),
    rule("AdamW", optim.AdamW, DENSE, NONE),
    rule("Adamax", optim.Adamax, DENSE, NONE),
    rule("Adadelta", optim.Adadelta, DENSE, NONE),
    rule("Adafactor", optim.Adafactor, DENSE, NONE),
    rule("ASGD", optim.ASGD, DENSE, NONE),
    rule("LBFGS", optim.LBFGS, BOTH, NONE, max_iter=2),
    rule("Muon", optim.Muon, DENSE, NONE),
    rule("NAdam", optim.NAdam, DENSE, NONE),
    rule("RAdam", optim.RAdam, DENSE, NONE),
    rule("RMSprop", optim.RMSprop, DENSE, NONE),
    rule("Rprop", optim.Rprop, DENSE, NONE),
)


def plain(training: Training, number: int, mark: Mark) -> None:
    training.zero_grad()
    training.backward(number)
    training.step_optimizers(number)


def zeroed_in_place(training: Training, number: int, mark: Mark) -> None:
    for optimizer in training.optimizers:
        optimizer.zero_grad(set_to_none=False)
    training.backward(number)
    training.step_optimizers(number)


def accumulated(training: Training, number: int, mark: Mark) -> None:
    """Steps at every second call only: a copy in between falls into the accumulation."""
    if number % 2 == 0:
        training.zero_grad()
    training.backward(number)
    if number % 2 == 1:
        training.step_optimizers(number)


def evaluated(training: Training, number: int, mark: Mark) -> None:
    """Lookups without a gradient, in eval mode and in inference mode."""
    training.model.eval()
    with torch.no_grad():
        training.model(training.ids(100 + number))
    with torch.inference_mode():
        training.model(training.ids(200 + number))
    plain(training, number, mark)  # still in eval mode, with a gradient
    training.model.train()


def with_closure(training: Training, number: int, mark: Mark) -> None:
    training.zero_grad()
    first, *others = training.optimizers
    first.step(lambda: training.backward_again(number))
    for optimizer in others:
        optimizer.step()


def clipped(training: Training, number: int, mark: Mark) -> None:
    training.zero_grad()
    training.backward(number)
    nn.utils.clip_grad_norm_(training.net.head.parameters(), 1e-3)
    training.net.emb.weight.grad.mul_(-1e-3)  # turns +0.0 into -0.0 where the gradient is dense
    training.step_optimizers(number)


def scaled(training: Training, number: int, mark: Mark) -> None:
    scaler = training.memory.setdefault("scaler", torch.amp.GradScaler(training.device_type, init_scale=8.0))
    training.zero_grad()
    scaler.scale(training.model(training.ids(number))).backward()
    for optimizer in training.optimizers:
        scaler.step(optimizer)
    scaler.update()


def nan_gradient(training: Training, number: int, mark: Mark) -> None:
    training.zero_grad()
    training.backward(number)
    gradient = training.net.emb.weight.grad
    if gradient.is_sparse:
        gradient._values()[0] = float("nan")
    else:
        gradient[training.ids(number)[0]] = float("nan")
    training.step_optimizers(number)


def edited_in_place(training: Training, number: int, mark: Mark) -> None:
    plain(training, number, mark)
    with torch.no_grad():
        training.net.emb.weight[(7 * number) % ROWS] += 1.0


def shrunk_after_step(training: Training, number: int, mark: Mark) -> None:
    """By a hook of the user's own, inside ``optimizer.step``."""
    if "hook" not in training.memory:
        weight = training.net.emb.weight
        training.memory["hook"] = training.optimizers[0].register_step_post_hook(lambda *_: weight.detach().mul_(0.9))
    plain(training, number, mark)


def edited_through_data(training: Training, number: int, mark: Mark) -> None:
    plain(training, number, mark)
    rows = torch.tensor([(11 * number) % ROWS, 3], device=training.device_type)
    training.net.emb.weight.data[rows] += 1.0
    mark("emb", rows)


def data_replaced(training: Training, number: int, mark: Mark) -> None:
    plain(training, number, mark)
    training.net.emb.weight.data = training.net.emb.weight.data + 1.0


def data_replaced_twice(training: Training, number: int, mark: Mark) -> None:
    """The second time, the allocator may give the first one's memory again."""
    plain(training, number, mark)
    weight = training.net.emb.weight
    weight.data = weight.data + 1.0
    weight.data = weight.data * 0.5


def slot_data_replaced(training: Training, number: int, mark: Mark) -> None:
    plain(training, number, mark)
    for value in training.optimizers[0].state[training.net.emb.weight].values():
        if isinstance(value, Tensor) and value.dim() and not value.is_sparse:
            value.data = value.data + 1.0


def state_spoilt(values: tuple[float, ...]) -> Callable[[Training], None]:
    """Slots that make a step move rows which have no gradient, or that look as if they did."""

    def arrange(training: Training) -> None:
        training.memory["spoilt"] = values

    return arrange


def with_spoilt_state(training: Training, number: int, mark: Mark) -> None:
    """The slots of some rows are spoilt before the first step; their weights are mended after every second one."""
    weight = training.net.emb.weight
    for slot in training.optimizers[0].state.get(weight, {}).values():
        if number == 0 and isinstance(slot, Tensor) and slot.dim() and not slot.is_sparse:
            for row, value in enumerate(training.memory["spoilt"]):
                slot[10 * row + 3] = value
    plain(training, number, mark)
    if number % 2 == 1:
        weight.data.nan_to_num_(0.25)  # as a user does who mends weights, and forgets the slots
        mark("emb", torch.arange(0, 40, device=weight.device))


def weights_loaded(training: Training, number: int, mark: Mark) -> None:
    plain(training, number, mark)
    state = {name: value + 1.0 for name, value in training.net.state_dict().items()}
    training.net.load_state_dict(state)


def optimizer_loaded(training: Training, number: int, mark: Mark) -> None:
    plain(training, number, mark)
    state = training.optimizers[0].state_dict()
    for entry in state["state"].values():
        for name, value in entry.items():
            if isinstance(value, Tensor) and value.dim() and not value.is_sparse:
                entry[name] = value + 1.0
    training.optimizers[0].load_state_dict(state)


def slots_edited(training: Training, number: int, mark: Mark) -> None:
    plain(training, number, mark)
    for value in training.optimizers[0].state[training.net.emb.weight].values():
        if isinstance(value, Tensor) and value.dim() and not value.is_sparse:
            value.add_(1.0)


def slots_replaced(training: Training, number: int, mark: Mark) -> None:
    """As when the optimizer's state is reset: the next step finds new slots of the same shape."""
    state = training.optimizers[0].state[training.net.emb.weight]
    for name, value in list(state.items()):
        if isinstance(value, Tensor) and value.dim() and not value.is_sparse:
            state[name] = value * 0.5 + 1.0
    plain(training, number, mark)


def share(training: Training) -> None:
    other = nn.Embedding(ROWS, DIM, sparse=training.net.emb.sparse, device=training.device_type)
    other.weight = training.net.emb.weight
    training.net.other = other


def tie(training: Training) -> None:
    training.net.out.weight = training.net.emb.weight


def minus_zeros(training: Training) -> None:
    """Weights that arithmetic with +0.0 would change."""
    with torch.no_grad():
        training.net.emb.weight[::3] = -0.0
        training.net.emb.weight[1::3] = 1e-45


SITUATIONS = (
    Situation(name="plain", depth="shallow", step=plain),
    Situation(name="zeroed_in_place", step=zeroed_in_place),
    Situation(name="bag", depth="middle", step=plain, options={"bag": True}),
    Situation(name="padding", step=plain, options={"padding_idx": 5}),
    Situation(name="minus_zeros", depth="shallow", step=plain, arrange=minus_zeros),
    Situation(name="bfloat16", step=plain, options={"dtype": torch.bfloat16}, gradients=SPARSE),
    Situation(
        name="bfloat16_dense", step=plain, options={"dtype": torch.bfloat16}, gradients=DENSE, gives_deltas=False
    ),
    Situation(name="float64", step=plain, options={"dtype": torch.float64}),
    Situation(name="accumulated", depth="shallow", step=accumulated),
    Situation(name="evaluated", depth="middle", step=evaluated),
    Situation(name="closure", depth="middle", step=with_closure),
    Situation(name="functional", depth="middle", step=plain, options={"lookup": "functional"}),
    Situation(name="direct_forward", depth="middle", step=plain, options={"lookup": "forward"}),
    Situation(name="max_norm", depth="shallow", step=plain, options={"max_norm": 0.5}),
    Situation(name="max_norm_bag", step=plain, options={"max_norm": 0.5, "bag": True}),
    Situation(name="max_norm_evaluated", step=evaluated, options={"max_norm": 0.5}),
    Situation(name="max_norm_closure", step=with_closure, options={"max_norm": 0.5}),
    Situation(
        name="max_norm_functional",
        step=plain,
        options={"max_norm": 0.5, "lookup": "functional"},
        gives_deltas=False,
    ),
    Situation(
        name="max_norm_direct_forward",
        step=evaluated,
        options={"max_norm": 0.5, "lookup": "forward"},
        gives_deltas=False,
    ),
    Situation(
        name="max_norm_functional_closure",
        step=with_closure,
        options={"max_norm": 0.5, "lookup": "functional"},
        gives_deltas=False,
    ),
    Situation(name="shared", depth="middle", step=plain, arrange=share),
    Situation(
        name="tied",
        depth="middle",
        step=plain,
        options={"lookup": "tied"},
        arrange=tie,
        gives_deltas=False,
        gradients=DENSE,
    ),
    Situation(name="clipped", step=clipped, gives_deltas=False),
    Situation(name="scaled", step=scaled),
    Situation(name="nan_gradient", step=nan_gradient),
    Situation(name="edited_in_place", depth="middle", step=edited_in_place, gives_deltas=False),
    Situation(name="shrunk_after_step", step=shrunk_after_step, gives_deltas=False),
    Situation(name="edited_through_data", depth="middle", step=edited_through_data),
    Situation(name="data_replaced", step=data_replaced, gives_deltas=False),
    Situation(name="data_replaced_twice", step=data_replaced_twice, gives_deltas=False),
    Situation(name="slot_data_replaced", step=slot_data_replaced, gives_deltas=False),
    Situation(
        name="state_spoilt",
        step=with_spoilt_state,
        arrange=state_spoilt((math.nan, -1.0, math.inf, -math.inf)),
        gives_deltas=False,
    ),
    Situation(name="weights_loaded", depth="middle", step=weights_loaded, gives_deltas=False),
    Situation(name="optimizer_loaded", depth="middle", step=optimizer_loaded, gives_deltas=False),
    Situation(name="slots_edited", step=slots_edited, gives_deltas=False),
    Situation(name="slots_replaced", step=slots_replaced, gives_deltas=False),
)


def _cases() -> Iterator[Case]:
    for one in RULES:
        for gradient in sorted(one.takes):
            for situation in SITUATIONS:
                if gradient in situation.gradients and DEPTHS.index(situation.depth) <= DEPTHS.index(one.depth):
                    yield Case(rule=one, gradient=gradient, situation=situation)


CASES = tuple(_cases())
