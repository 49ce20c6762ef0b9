"""Tables whose rows are found by keys: what Holdfast must be able to ask of one, and to do to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol, runtime_checkable

from torch import Tensor, nn

KEY: Final = "key"
EMPTY_KEY: Final = -(2**63)  # of a row without a key


@runtime_checkable
class KeyedTable(Protocol):
    """A table of a fixed number of rows, each of which is empty or belongs to a key.

    Which row a key gets, and whose row it takes, the table decides. Holdfast sees an insert and an eviction as what
    they do to a row: its key is another one. So a key is a column of the row records, which are saved when they change
    and restored to the same rows, with the weights and the optimizer's slots of one instant.
    """

    @property
    def weight(self) -> nn.Parameter:
        """The rows. A module of the model may hold it as well, and an optimizer."""
        ...

    @property
    def columns(self) -> Mapping[str, Tensor]:
        """What is kept for each row beside its weights, always the same tensors, with one entry per row each.

        ``"key"`` is among them: int64, and the least number of that type, -2**63, for a row without a key. All others
        are the table's own: times and counts by which it evicts. They are stored exactly, whatever the precision.
        """
        ...

    def take_changed(self) -> Tensor | None:
        """The numbers of rows that the table itself changed since this was asked last, in any order; None: any rows.

        Those of every key that was inserted or evicted and of every column that was written, and those whose weights
        the table wrote, which it does through ``weight.data``. Rows that an optimizer moved are seen without this. Of
        a row that is not told, the next checkpoint holds what it was before.
        """
        ...

    def restored(self) -> None:
        """Rows and columns were overwritten by those of a checkpoint: find keys by what the columns say now."""
        ...

    def insert(self, keys: Tensor, columns: Mapping[str, Tensor]) -> Tensor:
        """Give every one of these keys a row, and return the rows' numbers; raises ValueError if there are too few.

        Called only when ``restored()`` has left the table empty, for a checkpoint of a table with another number of
        rows; their weights and slots are written after it.

        Args:
            keys: The keys, all different.
            columns: For each of them, in the same order, what the checkpoint has in the table's other columns.
        """
        ...

    def get_state(self) -> Any:
        """What is kept for no single row, such as a clock: tensors, numbers, strings, and collections of them."""
        ...

    def set_state(self, state: Any) -> None:
        """Take over what was kept when the checkpoint was taken. ``restored()`` follows, once the rows are there.

        Args:
            state: What ``get_state()`` returned then.
        """
        ...
