"""Forecast: which ids of a batch will reach which table, so that their rows can be pulled before they are needed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from holdfast.cluster.train.fetcher import TableIds
from holdfast.cluster.train.layout import layout_of
from holdfast.cluster.train.sites import OpenBatch, Site, learn
from holdfast.cluster.train.table import Table
from holdfast.errors import ConfigurationError

logger = logging.getLogger("holdfast")

IdsFunction: TypeAlias = Callable[[Any], Mapping[str, Tensor | Sequence[Tensor]]]

_MOST_SITES = 16  # of a table; more of them differ from batch to batch, and none would be right
_REMEDY = "pass batches(loader, ids=...) a function from a batch to the ids of each table by name"


class Forecast:
    """Learns from every call of a table that was not foreseen; or asks the user's function.

    Attributes:
        version: Rises with what is learnt.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        self.version = 0
        self._tables = tables
        self._sites: dict[int, list[Site]] = {number: [] for number in range(len(tables))}
        self._numbers = {id(table): number for number, table in enumerate(tables)}
        self._told: set[int] = set()

    def of(self, batch: Any, ids: IdsFunction | None) -> list[TableIds]:
        """What a batch will bring, in the order of tables."""
        if ids is not None:
            return self._asked(ids(batch))
        found, opened = [], OpenBatch(batch)
        for number, sites in self._sites.items():
            views = [view for site in sites if (view := site.view(opened)) is not None]
            if len(views) > 1:
                views = list({(view.data_ptr(), layout_of(view)): view for view in views}.values())
            found += [TableIds(number, view) for view in views]
        return found

    def learn(self, batch: Any, table: Table, ids: Tensor, *, asks: bool) -> None:
        """A table was called with ids that were not foreseen."""
        number = self._numbers[id(table)]
        if number in self._told or not ids.numel():
            return
        sites = self._sites[number]
        site = None if asks else learn(batch, ids)
        if site is not None and site not in sites and len(sites) < _MOST_SITES:
            sites.append(site)
            self.version += 1
            return
        self._told.add(number)
        why = (
            "which ids= did not name"
            if asks
            else "which were changed after the batch was read"
            if site is not None
            else "which are not a part of a tensor of the batch"
        )
        logger.warning(
            "table %s was called with ids %s: their rows are pulled while the model waits for them. %s",
            table.name,
            why,
            "Let it name them" if asks else f"To pull them ahead, {_REMEDY}",
        )

    def _asked(self, answer: Mapping[str, Tensor | Sequence[Tensor]]) -> list[TableIds]:
        numbers = {name: number for number, table in enumerate(self._tables) for name in _names(table)}
        found = []
        for name, given in answer.items():
            if name not in numbers:
                known = ", ".join(table.name.removesuffix(".weight") for table in self._tables) or "none"
                raise ConfigurationError(f"ids= named the table {name!r}; tables on servers are: {known}")
            found += [TableIds(numbers[name], each) for each in ([given] if isinstance(given, Tensor) else given)]
        return sorted(found, key=lambda each: each.table)


def _names(table: Table) -> set[str]:
    names = {table.name, *table.spec.aliases}
    return names | {name.removesuffix(".weight") for name in names}
