"""A small model whose rows are moved one by one, and a run that must hold each of its states, for tests of the grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SparseAdam

import holdfast as hf
from holdfast.checkpoint.read import VerifiedReader
from holdfast.format.manifest import Manifest
from holdfast.policy import Strategy
from holdfast.run import Run
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store

ROWS = {"wide": 60, "short": 17, "flat": 25}
SETTINGS: dict[str, Any] = {
    "buffer_bytes": 2 * 65536,
    "frame_bytes": 65536,  # half of the widest table
    "grace_s": 0.0,
    "uploads": 1,
    "retry_s": 0.0,
    "takeover_s": 0.0,
    "handle_sigterm": False,
}

Columns = dict[str, Tensor]
State = dict[str, Columns]  # by table and column
Ids = Mapping[str, Sequence[int]]


class Model:
    """Tables of several types, each moved by SparseAdam: its slots appear with a table's first gradient."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.module = nn.ModuleDict(
            {
                "wide": nn.Embedding(ROWS["wide"], 160, sparse=True),
                "short": nn.Embedding(ROWS["short"], 3, sparse=True, dtype=torch.bfloat16),
            }
        )
        self.flat = nn.Parameter(torch.zeros(ROWS["flat"], dtype=torch.float64))  # one number a row
        self.module.register_parameter("flat_weight", self.flat)
        self.parameters = {"wide": self.module["wide"].weight, "short": self.module["short"].weight, "flat": self.flat}
        with torch.no_grad():
            for parameter in self.parameters.values():
                parameter.copy_(torch.rand(parameter.shape, generator=generator))
        self.optimizer = SparseAdam(list(self.parameters.values()), lr=0.1)

    @property
    def parts(self) -> dict[str, Any]:
        """What a Checkpointer and a restore are given."""
        return {"model": self.module, "optimizer": self.optimizer, "tables": {"flat": self.flat}}

    def step(self, ids: Ids, seed: int) -> None:
        """Move these rows, and no others."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.parameters.items():
            parameter.grad = None
            if name in ids:
                rows = torch.tensor(sorted(ids[name]), dtype=torch.int64)
                values = torch.rand((len(rows), *parameter.shape[1:]), generator=generator).to(parameter.dtype) + 0.5
                parameter.grad = torch.sparse_coo_tensor(rows[None], values, parameter.shape)
        self.optimizer.step()

    def state(self) -> State:
        """Every row of every table, weight and slots."""
        return {name: self._columns(parameter) for name, parameter in self.parameters.items()}

    def _columns(self, parameter: nn.Parameter) -> Columns:
        slots = {k: v for k, v in self.optimizer.state.get(parameter, {}).items() if k.startswith("exp_avg")}
        return {name: tensor.detach().clone() for name, tensor in {"weight": parameter, **slots}.items()}


class Trainer:
    """Moves rows and saves, from wherever the run stands; remembers in ``saved`` what each checkpoint must hold."""

    def __init__(
        self,
        store: Store,
        strategy: Strategy,
        saved: dict[str, State],
        *,
        step: int | None = None,
        retention: hf.Retention = hf.KeepAll(),  # noqa: B008 - frozen
        runtime: Runtime = SYSTEM,
        **settings: Any,
    ) -> None:
        self.model = Model()
        self.saved = saved
        self._store = store
        self.guard = hf.Checkpointer(
            store,
            **self.model.parts,
            save=hf.Never(),
            strategy=strategy,
            retention=retention,
            overlap=hf.Overlap.WAIT,
            settings=hf.Settings(**{**SETTINGS, **settings}),
            runtime=runtime,
        )
        self.guard.resume(step)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.guard.close()
        else:
            self.guard.__exit__(kind, *rest)  # type: ignore[arg-type]

    def move(self, ids: Ids) -> None:
        """One step that moves these rows."""
        self.model.step(ids, seed=hash((self.guard.steps, len(self.saved))) % 2**31)
        self.guard.step()

    def save(self, ids: Ids, *, whole: Sequence[str] = (), tag: str | None = None) -> str:
        """Move these rows, save, and wait for the commit; some tables are saved whole."""
        self.move(ids)
        for name in whole:
            self.guard.mark(name, None)
        self.guard.save(tag=tag, wait=True)
        return self.remember()

    def remember(self) -> str:
        """The newest checkpoint holds the state of now."""
        info = Run(self._store).checkpoints()[-1]
        self.saved[info.id] = self.model.state()
        return info.id


def manifests(store: Store) -> dict[str, tuple[Manifest, ...]]:
    """Every kept checkpoint's manifests, by its id."""
    reader = VerifiedReader(store)
    return {entry.info.id: reader.parts(entry) for entry in Run(store).head().entries}


def restored(run: Run, checkpoint: str | int | None) -> State:
    """The tables of a checkpoint, read into a model that knows nothing of it."""
    model = Model()
    run.restore(checkpoint, **model.parts)
    return model.state()


def same(first: Mapping[str, Columns], second: Mapping[str, Columns]) -> bool:
    """Whether all columns of all tables are equal bit for bit."""
    return first.keys() == second.keys() and all(
        first[table].keys() == second[table].keys()
        and all(_equal(first[table][column], second[table][column]) for column in first[table])
        for table in first
    )


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
