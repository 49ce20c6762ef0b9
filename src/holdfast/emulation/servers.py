"""Emulated servers: each holds a range of every table's rows, fails, and gets them back as last saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from holdfast.checkpoint.track.selectors import Selector, selector
from holdfast.checkpoint.training.slot_names import WEIGHT
from holdfast.checkpoint.training.tables import Table, row_range
from holdfast.errors import ConfigurationError
from holdfast.policy.arguments import require_count
from holdfast.policy.priority import Priority, largest

RangeOf: TypeAlias = Callable[[Table, int], tuple[int, int]]  # the rows of a table that a server holds


class EmulatedServers:
    """Tables in one process, divided among servers as ranks divide a checkpoint, and what was last saved of every row.

    What is there when they are made is the baseline. ``priority`` looks at gradients until ``close``. ``range_of`` says
    which rows of a table a server holds, where they are not divided so.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        servers: int,
        priority: Priority | None = None,
        *,
        range_of: RangeOf | None = None,
    ) -> None:
        require_count(self, "servers", servers)
        self._tables = {table.name: table for table in tables}
        self._servers = servers
        self._range_of = range_of or (lambda table, server: row_range(table.rows, server, servers))
        self._saved: dict[str, dict[str, Tensor]] = {}
        self._selectors = self._made_selectors(priority) if priority is not None else {}
        self._handles = [each.register_step_pre_hook(self._see) for each in self._observed_optimizers()]
        self.save()

    def save(self) -> None:
        """Save every row."""
        for name, table in self._tables.items():
            self._saved[name] = {column: tensor.clone() for column, tensor in _columns(table).items()}
        for each in self._selectors.values():
            each.begin(None)
            each.committed()

    def save_first(self) -> None:
        """Save the rows that the priority chooses of the largest tables, and the other tables whole."""
        for name, table in self._tables.items():
            chooses = self._selectors.get(name)
            ids = chooses.choose() if chooses else None
            self._save_rows(table, ids)
            if chooses:
                chooses.begin(ids)
                chooses.committed()

    def fail(self, servers: Iterable[int]) -> None:
        """These servers lose their rows and load what was last saved of each; nothing else changes."""
        lost = list(servers)
        if unknown := [each for each in lost if not 0 <= each < self._servers]:
            raise ConfigurationError(
                f"EmulatedServers: there are {self._servers} servers, from 0; {unknown} cannot fail"
            )
        for table in self._tables.values():
            for server in lost:
                self._load(table, *self._range_of(table, server))

    def close(self) -> None:
        """Look at gradients no more."""
        for handle in self._handles:
            handle.remove()

    def saved_rows(self, name: str) -> dict[str, Tensor]:
        """What was last saved of a table's rows, by column."""
        return self._saved[name]

    def _made_selectors(self, priority: Priority) -> dict[str, Selector]:
        sizes = {name: table.parameter.nbytes for name, table in self._tables.items()}
        chosen = sorted(largest(sizes))
        return {name: selector(priority, self._tables[name], 0, self._tables[name].rows) for name in chosen}

    def _observed_optimizers(self) -> list[Optimizer]:
        observed = [self._tables[name].optimizer for name, each in self._selectors.items() if each.sees_gradients]
        return list({id(each): each for each in observed if each is not None}.values())

    def _see(self, optimizer: Optimizer, *_: Any) -> None:
        for name, each in self._selectors.items():
            table = self._tables[name]
            if table.optimizer is optimizer and each.sees_gradients and table.parameter.grad is not None:
                each.see(table.parameter.grad)

    def _save_rows(self, table: Table, ids: Tensor | None) -> None:
        saved = self._saved[table.name]
        for column, tensor in _columns(table).items():
            if ids is None:
                saved[column] = tensor.clone()
            else:
                # A slot that was not there at the last save: its rows were zero then, as optimizers begin them.
                saved.setdefault(column, torch.zeros_like(tensor))[ids] = tensor[ids]

    def _load(self, table: Table, start: int, stop: int) -> None:
        saved = self._saved[table.name]
        for column, tensor in _columns(table).items():
            tensor[start:stop] = saved[column][start:stop] if column in saved else 0
        if table.name in self._selectors:
            self._selectors[table.name].forget(start, stop)


def _columns(table: Table) -> dict[str, Tensor]:
    return {WEIGHT: table.parameter.detach(), **table.slots()}
