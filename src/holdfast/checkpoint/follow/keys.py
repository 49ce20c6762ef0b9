"""The baselines that difference-coded rows refer to, kept from update to update."""

from __future__ import annotations

from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.checkpoint.read.key_frame import KeyTable, key_of
from holdfast.checkpoint.read.table_plan import TablePlan


class Keys:
    """The rows that differences are added to: kept in memory in their stored form, or reread each time."""

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._kept: dict[str, KeyTable] = {}

    def of(self, fetcher: Fetcher, plan: TablePlan) -> KeyTable | None:
        """A table's; None where no row is a difference. One of another baseline is not kept any longer."""
        name, key = plan.spec.name, key_of(fetcher, plan)
        kept = self._kept.pop(name, None)
        if key is None or not self._keep:
            return key
        if kept is None or kept.baseline != key.baseline:
            kept = key.in_memory()
        self._kept[name] = kept
        return kept
