"""What a model asks of servers: its large tables, and everything else as one dense vector. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, Self

from holdfast.errors import ConfigurationError
from holdfast.policy.tables import Init

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """A table that lives on servers, float32."""

    name: str  # of its weight among the model's parameters
    rows: int
    width: int  # values in a row
    init: Init  # how its rows begin
    padding_idx: int | None = None  # a row that begins as zeros
    aliases: tuple[str, ...] = ()  # other names of the same weight

    @property
    def size_bytes(self) -> int:
        """Of its weights, without slots."""
        return self.rows * self.width * 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSpec:
    """A parameter that every worker has a copy of, float32."""

    name: str
    shape: tuple[int, ...]
    requires_grad: bool = True
    aliases: tuple[str, ...] = ()
    table: str | None = None  # of an embedding: checkpoints hold its rows under this name, whatever size tables have

    @property
    def size(self) -> int:
        """How many values it has."""
        return prod(self.shape)

    @property
    def rows(self) -> int:
        """As servers see it: a vector or a number is one row."""
        return self.shape[0] if len(self.shape) > 1 else 1

    @property
    def width(self) -> int:
        """Values in a row."""
        return prod(self.shape[1:]) if len(self.shape) > 1 else self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """Tables and dense parameters, in the order of the model's ``named_parameters()``."""

    tables: tuple[TableSpec, ...]
    dense: tuple[DenseSpec, ...]
    seed: int = 0  # from which tables begin

    @property
    def dense_size(self) -> int:
        """The length of the dense vector."""
        return sum(each.size for each in self.dense)

    def to_json(self) -> str:
        """For other processes; ``from_json`` returns an equal plan."""
        tables = [{**_fields(each), "init": each.init.to_dict()} for each in self.tables]
        dense = [asdict(each) for each in self.dense]
        return json.dumps({"version": VERSION, "seed": self.seed, "tables": tables, "dense": dense})

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The plan that ``to_json`` described."""
        document = json.loads(text)
        if document.get("version") != VERSION:
            raise ConfigurationError(
                f"a model plan of version {document.get('version')!r} is not known to this release"
            )
        tables = tuple(_table(each) for each in document["tables"])
        return cls(tables=tables, dense=tuple(map(_dense, document["dense"])), seed=document["seed"])


def _fields(table: TableSpec) -> dict[str, Any]:
    return {name: getattr(table, name) for name in ("name", "rows", "width", "padding_idx", "aliases")}


def _table(data: Mapping[str, Any]) -> TableSpec:
    return TableSpec(**{**data, "init": Init.from_dict(data["init"]), "aliases": tuple(data["aliases"])})


def _dense(data: Mapping[str, Any]) -> DenseSpec:
    return DenseSpec(**{**data, "shape": tuple(data["shape"]), "aliases": tuple(data["aliases"])})
