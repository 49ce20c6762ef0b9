"""Sorts the tensors of a foreign checkpoint into embedding tables, dense weights and what is left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from holdfast.checkpoint.transfer.foreign.tensors import ForeignCheckpoint, ForeignTensor
from holdfast.errors import ConfigurationError

_WEIGHT = ".weight"  # what a table's module adds to its name
_LISTED = 8  # names in one message


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What becomes of each tensor; ``skipped`` says why."""

    tables: Mapping[str, ForeignTensor]
    dense: Mapping[str, ForeignTensor]
    skipped: Mapping[str, str]


def select(foreign: ForeignCheckpoint, patterns: Sequence[str], prefix: str, *, where: str) -> Selection:
    """Matrices whose name, without ``.weight``, matches a pattern are tables.

    Only names that begin with ``prefix`` count, and lose it. A tensor with several names is taken once.
    """
    named = {name.removeprefix(prefix): found for name, found in foreign.tensors.items() if name.startswith(prefix)}
    if not named:
        held = _some(foreign.tensors)
        raise ConfigurationError(f"{where}: no tensor's name begins with {prefix!r}; this {foreign.kind} holds {held}")
    for pattern in patterns:
        _require_match(named, pattern, where)
    single, skipped = _without_repeats(named, patterns)
    tables = {name: found for name, found in single.items() if _is_table(name, found, patterns)}
    return Selection(
        tables=_by_table_name(tables, where),
        dense={name: found for name, found in single.items() if name not in tables},
        skipped={**foreign.skipped, **_outside(foreign, prefix), **skipped},
    )


def _require_match(named: Mapping[str, ForeignTensor], pattern: str, where: str) -> None:
    if not any(_is_table(name, found, [pattern]) for name, found in named.items()):
        matrices = [_table_name(name) for name, found in named.items() if _is_matrix(found)]
        raise ConfigurationError(
            f"{where}: no table matches {pattern!r}; its floating-point matrices are {_some(matrices)}. "
            "Name the embedding tables among them with tables= (--table)"
        )


def _without_repeats(
    named: Mapping[str, ForeignTensor], patterns: Sequence[str]
) -> tuple[dict[str, ForeignTensor], dict[str, str]]:
    """Each tensor under one name, a table's if it has one (a table may be tied to a Linear), and the other names."""
    name_of: dict[object, str] = {}
    for name in sorted(named, key=lambda name: not _is_table(name, named[name], patterns)):
        name_of.setdefault(named[name].identity or name, name)
    kept = {name: found for name, found in named.items() if name_of[found.identity or name] == name}
    return kept, {
        name: f"is the same tensor as {name_of[found.identity or name]}"
        for name, found in named.items()
        if name not in kept
    }


def _by_table_name(tables: Mapping[str, ForeignTensor], where: str) -> dict[str, ForeignTensor]:
    renamed = {_table_name(name): found for name, found in tables.items()}
    if len(renamed) < len(tables):
        raise ConfigurationError(f"{where}: a table's name occurs with and without {_WEIGHT}; narrow the patterns")
    return renamed


def _outside(foreign: ForeignCheckpoint, prefix: str) -> dict[str, str]:
    return {name: f"does not begin with {prefix!r}" for name in foreign.tensors if not name.startswith(prefix)}


def _is_table(name: str, found: ForeignTensor, patterns: Iterable[str]) -> bool:
    return _is_matrix(found) and any(fnmatchcase(_table_name(name), pattern) for pattern in patterns)


def _is_matrix(found: ForeignTensor) -> bool:
    return len(found.shape) == 2 and found.dtype.is_floating_point


def _table_name(name: str) -> str:
    return name.removesuffix(_WEIGHT)


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return (", ".join(listed[:_LISTED]) + more) or "none"
