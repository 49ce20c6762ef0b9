"""Reader: any checkpoint of a run, for ``dcp.load``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.checkpoint.read.fetcher import Fetcher, find_checkpoint, leased, lineage
from holdfast.errors import ConfigurationError, RunError
from holdfast.format.catalog import Entry
from holdfast.integrations.dcp.boxes import BoxCopy
from holdfast.integrations.dcp.contents import Contents
from holdfast.integrations.dcp.native import NativeCheckpoint
from holdfast.integrations.dcp.saved import DcpCheckpoint
from holdfast.integrations.dcp.stored import key_of
from holdfast.integrations.dcp.values import pickled
from holdfast.opening import open_patiently, read_head
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store


class Reader(StorageReader):
    """Gives ``dcp.load`` a checkpoint of a run: of a ``Writer``, of a ``Checkpointer`` or of a ``Cluster``.

    Of the last two, the state dict to load has the model's under ``root``, the optimizers' under ``"optimizer"`` as
    ``torch.distributed.checkpoint.state_dict.get_optimizer_state_dict`` returns it, the extras' under ``"extra"``.
    Every byte is verified. While it is being read, a lease keeps others from deleting it.

    Args:
        url: The run: a path or URL as of ``Checkpointer``, or a ``Store`` object.
        step: The checkpoint's step or id. None: the newest one. ``checkpoint_id=`` of ``dcp.load`` takes precedence.
        root: Where the state dict to load has the model's, for a checkpoint of a ``Checkpointer`` or ``Cluster``. None:
            the state dict is the model's.
        options: Object store client options, such as ``region`` or ``endpoint``.
    """

    _runtime: ClassVar[Runtime] = SYSTEM  # holdfast.testing.runtime replaces it

    def __init__(
        self,
        url: str | os.PathLike[str] | Store,
        *,
        step: int | str | None = None,
        root: str | None = "model",
        options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._store = open_patiently(url, options)
        self._chain = Chain(self._store, runtime=self._runtime)
        self._fetcher = Fetcher(self._store, runtime=self._runtime)
        self._step = step
        self._root = root
        self._told: set[str] = set()
        self._id = ""
        self._contents: Contents | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a new load, of the checkpoint ``checkpoint_id`` if that is given.

        Args:
            checkpoint_id: A step or an id, as DCP passes it on from ``dcp.load``.
        """
        self._contents = None
        if checkpoint_id is not None:
            name = os.fspath(checkpoint_id)
            self._step = int(name) if name.isdecimal() else name

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Which tensors and values the checkpoint holds."""
        with self._reading(self._step) as (head, entry):
            self._id = entry.info.id
            self._contents = open_contents(self._fetcher, head, entry, root=self._root)
            metadata = self._contents.metadata()
        return replace(metadata, storage_meta=StorageMeta(checkpoint_id=self._id))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """Nothing to do: what was read stays with the reader."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Tell rank 0 which checkpoint this rank found."""
        return replace(plan, storage_data=self._id)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """On rank 0: all must have found the same checkpoint."""
        if len(found := {plan.storage_data for plan in plans}) > 1:
            raise RunError(
                f"ranks found different checkpoints to be the newest of {self._store.url}: {', '.join(sorted(found))}, "
                "because one was being saved: load again, or pass step="
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what this rank's plan wants, straight into its tensors where that can be."""
        contents = self._contents
        assert contents is not None  # DCP has called read_metadata
        with self._reading(self._id):
            wanted = [(item, planner.resolve_tensor(item).detach()) for item in plan.items if not _is_value(item)]
            contents.fill(
                [
                    BoxCopy(key=key_of(item.storage_index), offsets=tuple(item.storage_offsets), target=target)
                    for item, target in wanted
                    if _checked(item, tuple(target.shape))
                ]
            )
            for item, target in wanted:
                planner.commit_tensor(item, target)
            for item in filter(_is_value, plan.items):
                planner.load_bytes(item, pickled(contents.value(item.storage_index.fqn)))
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it could be a step or an id.

        Args:
            checkpoint_id: What ``dcp.load`` was given.
        """
        name = os.fspath(checkpoint_id)
        return name.isdecimal() or "/" not in name

    @contextmanager
    def _reading(self, step: int | str | None) -> Iterator[tuple[Head, Entry]]:
        def look() -> Head:
            return read_head(self._chain, self._store.url, told=self._told)

        def found(head: Head) -> Entry:
            return find_checkpoint(head, step, where=self._store.url)

        def wanted(head: Head) -> tuple[Entry, ...]:
            return lineage(head, found(head).info.id)

        with leased(self._store, look, wanted, runtime=self._runtime) as head:
            yield head, found(head)


def open_contents(fetcher: Fetcher, head: Head, entry: Entry, *, root: str | None) -> Contents:
    """What a checkpoint of a run holds, whoever wrote it."""
    return DcpCheckpoint.open(fetcher, entry) or NativeCheckpoint.open(fetcher, head, entry, root=root)


def _is_value(item: ReadItem) -> bool:
    return item.type == LoadItemType.BYTE_IO


def _checked(item: ReadItem, shape: tuple[int, ...]) -> bool:
    if shape != tuple(item.lengths):
        raise ConfigurationError(
            f"{item.dest_index.fqn}: the planner wants {list(item.lengths)} of it and gave a tensor of {list(shape)}"
        )
    return True
