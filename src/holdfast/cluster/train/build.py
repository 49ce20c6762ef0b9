"""build: a user's ordinary model, with its large tables on servers instead of in this process."""

from __future__ import annotations

import inspect
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from holdfast.checkpoint.training.rng import capture_rng, restore_rng
from holdfast.cluster.plan import DenseSpec, ModelPlan, TableSpec
from holdfast.cluster.train.remote import RemoteTable, remote_class
from holdfast.cluster.train.table import Table
from holdfast.cluster.train.untouchable import UntouchableWeight
from holdfast.errors import ConfigurationError
from holdfast.policy.tables import Tables

_FLOAT_BYTES = 4
_ONE_AT_A_TIME = threading.Lock()  # torch's classes and its random generators are changed meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A model without its large tables."""

    module: nn.Module
    plan: ModelPlan
    tables: tuple[Table, ...]  # in the plan's order
    dense: tuple[nn.Parameter, ...]  # in the plan's order

    def dense_values(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The dense vector as the model begins."""
        parts = [each.detach().reshape(-1).cpu() for each in self.dense]
        return torch.cat(parts).numpy() if parts else np.empty(0, np.float32)


def build(build_model: Callable[[], nn.Module], tables: Tables | None = None) -> BuiltModel:
    """Call ``build_model``, with tables above a size replaced by ones on servers, which never exist here.

    Dense parameters begin from the declared seed, in every process alike; random generators are as before afterwards.

    Args:
        build_model: Returns the model.
        tables: Which tables live on servers, and how their rows begin.
    """
    declared = Tables() if tables is None else tables
    with _ONE_AT_A_TIME, _seeded(declared.seed), _remote_tables(declared.min_bytes):
        module = build_model()
    if not isinstance(module, nn.Module):
        raise ConfigurationError(f"the function that builds the model returned {type(module).__name__}, not a Module")
    for each in module.modules():
        if isinstance(each, nn.Embedding | nn.EmbeddingBag) and not isinstance(each, RemoteTable):
            each.sparse = False  # all gradients of dense parameters go out as one vector; clipping takes no sparse ones
    return _planned(module, declared)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    before = capture_rng()
    torch.manual_seed(seed % 2**63)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        yield
    finally:
        restore_rng(before)


@contextmanager
def _remote_tables(min_bytes: int) -> Iterator[None]:
    """Within, large tables are made without a weight: by whatever name torch's class was imported, or subclassed."""
    kinds: tuple[Any, ...] = (nn.Embedding, nn.EmbeddingBag)
    originals = [kind.__init__ for kind in kinds]
    for kind, original in zip(kinds, originals, strict=True):
        kind.__init__ = _wrapped(original, min_bytes)
    try:
        yield
    finally:
        for kind, original in zip(kinds, originals, strict=True):
            kind.__init__ = original


def _wrapped(original: Callable[..., None], min_bytes: int) -> Callable[..., None]:
    signature = inspect.signature(original)

    @wraps(original)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        call = signature.bind(self, *args, **kwargs)
        call.apply_defaults()
        rows, width = call.arguments["num_embeddings"], call.arguments["embedding_dim"]
        if width < 1 or rows * width * _FLOAT_BYTES < min_bytes:
            original(self, *args, **kwargs)
        else:
            _make_remote(self, original, call)

    return make


def _make_remote(module: Any, original: Callable[..., None], call: inspect.BoundArguments) -> None:
    rows, width = call.arguments["num_embeddings"], call.arguments["embedding_dim"]
    kind = type(module).__name__
    _require_supported(f"{kind}({rows}, {width})", call.arguments)
    device = call.arguments["device"]
    call.arguments.update(_weight=torch.empty(rows, width, device="meta", dtype=torch.float32), dtype=None, device=None)
    original(*call.args, **call.kwargs)
    module.__class__ = remote_class(cast(Any, type(module)))
    module.__dict__["_remote"] = None
    module.move_rows(torch.get_default_device() if device is None else torch.device(device))
    trained = not call.arguments.get("_freeze", False)
    module._parameters["weight"] = UntouchableWeight.of(rows, width, kind=kind, requires_grad=trained)
    module.reset_parameters()  # as torch does: a subclass that has its own is told that it cannot


def _require_supported(name: str, arguments: dict[str, Any]) -> None:
    smaller = "to keep the table in every worker, raise tables(min_bytes=...) above its size"
    if arguments["_weight"] is not None:
        raise ConfigurationError(
            f"{name} was given its weight, as from_pretrained() does: a table of this size lives on servers. Declare "
            "how its rows begin with tables(init=...), or import trained rows into the run with "
            f"holdfast.import_checkpoint; {smaller}"
        )
    if arguments["max_norm"] is not None:
        raise ConfigurationError(
            f"{name} has max_norm, which changes rows as they are read; servers do not. Leave it out, or normalise "
            f"what the module returns; {smaller}"
        )
    dtype = arguments["dtype"] or torch.get_default_dtype()
    if dtype != torch.float32:
        raise ConfigurationError(f"{name} is {dtype}, and tables on servers are float32: pass dtype=torch.float32")


# ---- what came out -----------------------------------------------------------------------------------------------


def _planned(module: nn.Module, declared: Tables) -> BuiltModel:
    names: dict[int, list[str]] = {}
    found: dict[int, nn.Parameter] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
        found[id(parameter)] = parameter
    owners = _owners(module)
    tables: list[tuple[TableSpec, Table]] = []
    dense: list[tuple[DenseSpec, nn.Parameter]] = []
    for key, parameter in found.items():
        if isinstance(parameter, UntouchableWeight):
            tables.append(_table(parameter, names[key], owners, declared))
        else:
            dense.append((_dense(parameter, names[key], owners), parameter))
    plan = ModelPlan(
        tables=tuple(spec for spec, _ in tables), dense=tuple(spec for spec, _ in dense), seed=declared.seed
    )
    return BuiltModel(
        module=module, plan=plan, tables=tuple(table for _, table in tables), dense=tuple(each for _, each in dense)
    )


def _owners(module: nn.Module) -> dict[str, nn.Module]:
    """By the names of parameters."""
    modules = module.named_modules(remove_duplicate=False)
    return {f"{path}.{name}" if path else name: each for path, each in modules for name in each._parameters}


def _table(
    weight: UntouchableWeight, names: list[str], owners: dict[str, nn.Module], declared: Tables
) -> tuple[TableSpec, Table]:
    modules = [owners[name] for name in names]
    for name, owner in zip(names, modules, strict=True):
        if not isinstance(owner, RemoteTable):
            raise ConfigurationError(
                f"{name} is tied to {names[0]}, which lives on servers: a {type(owner).__name__} needs the whole "
                "weight. Untie them, or keep the table in every worker by raising tables(min_bytes=...) above its size"
            )
    remotes = cast(list[RemoteTable], modules)
    paddings = [cast(int | None, each.padding_idx) for each in remotes]
    spec = TableSpec(
        name=names[0],
        rows=weight.shape[0],
        width=weight.shape[1],
        init=declared.init_of(names[0]),
        padding_idx=paddings[0],
        aliases=tuple(names[1:]),
    )
    padding = paddings[0] if len(set(paddings)) == 1 else None
    table = Table(spec, device=remotes[0].rows_device, requires_grad=weight.requires_grad, padding_idx=padding)
    for each in remotes:
        each.connect(table)
    return spec, table


def _dense(parameter: nn.Parameter, names: list[str], owners: dict[str, nn.Module]) -> DenseSpec:
    if parameter.dtype != torch.float32:
        raise ConfigurationError(
            f"the parameter {names[0]} is {parameter.dtype}, and servers keep float32: build the model in float32 and "
            "use torch.autocast for lower precision"
        )
    if parameter.is_meta:
        raise ConfigurationError(f"the parameter {names[0]} has no values (it is on the meta device): initialise it")
    tables = [name for name in names if isinstance(owners[name], nn.Embedding | nn.EmbeddingBag)]
    return DenseSpec(
        name=names[0],
        shape=tuple(parameter.shape),
        requires_grad=parameter.requires_grad,
        aliases=tuple(names[1:]),
        table=tables[0].removesuffix(".weight") if tables and parameter.numel() else None,
    )


def move(built: BuiltModel, device: torch.device | str | None) -> torch.device:
    """Everything of a model on one device: this one, or the one that it was built on."""
    if device is not None:
        wanted = torch.empty(0, device=device).device
        for table in built.tables:
            table.parameter.data = table.parameter.data.to(wanted)
        for module in built.module.modules():
            if isinstance(module, RemoteTable):
                module.move_rows(wanted)
        built.module.to(wanted)
        return wanted
    devices = {each.device for each in built.dense} | {table.parameter.device for table in built.tables}
    if len(devices) > 1:
        raise ConfigurationError(
            f"the model is spread over {', '.join(map(str, devices))}: a worker trains on one device"
        )
    return devices.pop() if devices else torch.device("cpu")
