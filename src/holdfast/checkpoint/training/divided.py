"""What Holdfast must know of a model whose modules divide their tables over the ranks, from whoever knows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from holdfast.checkpoint.training.tables import Table

SeeRows = Callable[[str, Tensor], None]  # rows of a table, by their numbers in its tensors, that are about to change


class Divided(Protocol):
    """Tables that are divided over the ranks. Every rank has the same ones, in the same order, some without rows."""

    @property
    def tables(self) -> Sequence[Table]:
        """What this rank holds of each of them; the optimizers of those that have ordinary ones are filled in later."""
        ...

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        """Stand for optimizers that are part of modules: they have groups and state to be saved, and take no step."""
        ...

    def knows(self, module: nn.Module) -> bool:
        """Whether everything that this module divides is among the tables."""
        ...

    def watch(self, see: SeeRows) -> list[RemovableHandle]:
        """Tell of every row that something else than an ordinary optimizer changes, before it does."""
        ...

    def read_options(self) -> None:
        """Bring groups and state of the stand-ins up to date: they are about to be saved."""
        ...

    def write_options(self) -> None:
        """Give the modules what the stand-ins now hold: it was restored."""
        ...


class Undivided:
    """A model that every rank holds in full."""

    tables: tuple[Table, ...] = ()
    optimizers: tuple[Optimizer, ...] = ()

    def knows(self, module: nn.Module) -> bool:
        """There is nothing to know."""
        return False

    def watch(self, see: SeeRows) -> list[RemovableHandle]:
        """There is nothing to tell of."""
        return []

    def read_options(self) -> None:
        """There are none."""

    def write_options(self) -> None:
        """There are none."""
