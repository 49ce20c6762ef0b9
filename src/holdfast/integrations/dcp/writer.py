"""Writer: a checkpoint of a run, written by ``dcp.save`` and ``dcp.async_save``."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from holdfast.checkpoint.agent.cleanup import Cleanup
from holdfast.checkpoint.commit.chain import Chain
from holdfast.checkpoint.commit.space import patient_store
from holdfast.checkpoint.training.forms import form_of
from holdfast.checkpoint.wire.messages import Message, Notice
from holdfast.checkpoint.write.committer import Committer, SaveTimes
from holdfast.errors import ConfigurationError, HoldfastError, SaveFailed, UnsupportedState
from holdfast.format.catalog import Intent
from holdfast.format.manifest import TensorSpec
from holdfast.format.tree import encode_tree
from holdfast.integrations.dcp.beginning import Earlier, last_save, make_intent, own_run
from holdfast.integrations.dcp.bundles import BundleWriter, StoreMore, Then, nothing_more
from holdfast.integrations.dcp.ending import Gathered, Part, make_part
from holdfast.integrations.dcp.sections import Source
from holdfast.integrations.dcp.stored import Assignment, PlainValue, StoredPiece, key_of
from holdfast.integrations.dcp.values import unpickled
from holdfast.policy import KeepLast, Retention
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store, open_store

logger = logging.getLogger("holdfast")

_PATIENCE_S = 300.0  # with the agent of a trainer that saved to this run before
_RETRY_S = 120.0
_GRACE_S = 600.0
_LITTLE_BYTES = 1 << 20  # not worth threads of their own


@cache
def _job(process: int) -> str:
    """What the Writers of one process are called in a run, also those that were pickled and sent to another one."""
    return f"{socket.gethostname()}:{process} by DCP, {SYSTEM.token()}"


@dataclass(slots=True, kw_only=True)
class _Save:
    """What rank 0 knows of a save in progress."""

    chain: Chain
    intent: Intent
    earlier: Earlier
    started_s: float
    is_alone: bool  # there is no other rank
    part: Part | None = None  # if it could be made while the disk was writing

    def make_part(
        self, metadata: Metadata, results: list[list[WriteResult]], store: Callable[[list[Source]], list[StoredPiece]]
    ) -> Part:
        """Store the state tree, and make the part."""
        return make_part(self.intent, metadata, Gathered.of(results), self.earlier.folders, store)


class Writer(StorageWriter):
    """Stores what ``dcp.save`` or ``dcp.async_save`` is given as a checkpoint of a run.

    The ranks write in parallel; rank 0 commits once, when all have. Until then the last checkpoint stays the newest.
    Tensors that are as they were in the last checkpoint are referred to, not written. The first save of a job takes the
    run over: after that, a save of any other job that used the run before raises ``TakenOver``. A save at a step that
    the run has reached already leaves its later checkpoints as an abandoned timeline.

    Args:
        url: The run: a path or URL as of ``Checkpointer``, or a ``Store`` object.
        step: The optimizer steps behind the state. ``checkpoint_id=`` of ``dcp.save`` takes precedence.
        retention: Which checkpoints are kept, as of ``Checkpointer``.
        tag: A name for the checkpoint.
        metrics: Numbers to keep with it, by name.
        options: Object store client options, such as ``region`` or ``endpoint``.
    """

    _runtime: ClassVar[Runtime] = SYSTEM  # holdfast.testing.runtime replaces it

    def __init__(
        self,
        url: str | os.PathLike[str] | Store,
        *,
        step: int,
        retention: Retention = KeepLast(1),  # noqa: B008
        tag: str | None = None,
        metrics: Mapping[str, float] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._url = os.fspath(url) if isinstance(url, str | os.PathLike) else url
        self._step = _checked_step(step)
        if not isinstance(retention, Retention):
            raise ConfigurationError(f"retention={retention!r} is not valid; pass a policy such as hf.KeepLast(3)")
        self._retention = retention
        self._tag = tag
        self._metrics = {name: float(value) for name, value in (metrics or {}).items()}
        self._options = options
        self._job = _job(os.getpid())
        self._opened: Store | None = None
        self._save: _Save | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_save": None}

    @property
    def step(self) -> int:
        """The step that the next save is of."""
        return self._step

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a new save, of the step ``checkpoint_id`` if that is given.

        Args:
            checkpoint_id: The step, as DCP passes it on from ``dcp.save``.
        """
        self._save = None
        if checkpoint_id is not None:
            if not self.validate_checkpoint_id(checkpoint_id):
                raise ConfigurationError(
                    f"checkpoint_id={os.fspath(checkpoint_id)!r} is not a step; the run's URL is that of the Writer"
                )
            self._step = int(os.fspath(checkpoint_id))

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Refuse what cannot end in one commit."""
        if not kwargs.get("use_collectives", True):
            raise ConfigurationError(
                "use_collectives=False lets every rank write a checkpoint of its own; a run takes one of all ranks: "
                "leave it at True"
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Nothing to add."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On rank 0: take the run's term, publish the intent, and tell each rank what the last checkpoint holds."""
        if not all(plan.usable for plan in plans):
            raise ConfigurationError(
                "enable_plan_caching=True lets ranks skip the plan that names the checkpoint: leave it at False"
            )
        started_s = self._runtime.monotonic_s()
        chain = Chain(self._store, writer=self._job, runtime=self._runtime)
        head = own_run(self._store, chain, self._job, patience_s=_PATIENCE_S, runtime=self._runtime)
        earlier = last_save(self._store, head, runtime=self._runtime)
        intent = make_intent(head, self._step, tag=self._tag, metrics=self._metrics, runtime=self._runtime)
        self._save = _Save(chain=chain, intent=intent, earlier=earlier, started_s=started_s, is_alone=len(plans) == 1)
        self._committer().publish(intent)
        return [
            replace(plan, storage_data=Assignment(checkpoint=intent.checkpoint, rank=rank, known=earlier.among(plan)))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """On every rank: store the tensors of the plan; other values go to rank 0 as they are."""
        assignment: Assignment = plan.storage_data
        values = [item for item in plan.items if item.type == WriteItemType.BYTE_IO]
        tensors = [item for item in plan.items if item.type != WriteItemType.BYTE_IO]
        known = [_value_result(item, planner) for item in values]

        def results_of(stored: list[StoredPiece]) -> list[WriteResult]:
            return [*known, *(_result(item, piece) for item, piece in zip(tensors, stored, strict=True))]

        bundles = BundleWriter(self._store, assignment.checkpoint, assignment.rank)
        try:
            stored = bundles.write(
                lambda: _sources(tensors, planner, assignment), then=self._ending(planner, known, results_of)
            )
            results = results_of(stored)
        except BaseException:
            _try_to(bundles.discard)
            raise
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On rank 0, when all ranks have stored their share: commit, and delete what retention has let go."""
        save = self._save
        assert save is not None  # DCP has called prepare_global_plan
        intent = save.intent
        part = save.part
        if part is None or part.metadata is not metadata:
            # No rank has a number so high: its bundles are those of the state tree.
            bundles = BundleWriter(self._store, intent.checkpoint, len(results))
            part = save.make_part(metadata, results, lambda tree: bundles.write(lambda: tree, little=_is_little(tree)))
        self._store.put(part.ref.name, part.data)
        self._committer().commit(intent, part.manifest, part.ref, times=SaveTimes(started_s=save.started_s))
        self._save = None
        cleanup = Cleanup(
            self._store,
            save.chain,
            term=intent.term,
            grace_s=_GRACE_S,
            leads=True,
            leftovers=None,
            tell=_tell,
            runtime=self._runtime,
        )
        cleanup.after_commit()

    def storage_meta(self) -> StorageMeta | None:
        """What a planner may keep with the checkpoint: which run it is of."""
        return StorageMeta(checkpoint_id=str(self._step))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is a step.

        Args:
            checkpoint_id: What ``dcp.save`` was given.
        """
        return os.fspath(checkpoint_id).isdecimal()

    def _ending(
        self,
        planner: SavePlanner,
        values: list[WriteResult],
        results_of: Callable[[list[StoredPiece]], list[WriteResult]],
    ) -> Then:
        """What a rank alone does while the disk writes its last frames: it stores the tree, and makes the part.

        A planner of DCP's keeps the metadata that ``finish`` will be given. With any other, or if they turn out to be
        others, ``finish`` makes the part.
        """
        save, metadata = self._save, getattr(planner, "metadata", None)
        little = sum(value.size_in_bytes for value in values) < _LITTLE_BYTES
        if save is None or not save.is_alone or not little or not isinstance(metadata, Metadata):
            return nothing_more

        def end(stored: list[StoredPiece], store_more: StoreMore) -> None:
            save.part = None
            with suppress(SaveFailed):  # these metadata are of another plan
                save.part = save.make_part(metadata, [results_of(stored)], store_more)

        return end

    @property
    def _store(self) -> Store:
        if self._opened is None:
            url = self._url
            store = open_store(url, options=self._options, patience_s=_RETRY_S) if isinstance(url, str) else url
            self._opened = patient_store(store, retry_s=_RETRY_S, grace_s=_GRACE_S, runtime=self._runtime)
        return self._opened

    def _committer(self) -> Committer:
        assert self._save is not None
        return Committer(
            self._store,
            self._save.chain,
            rank=0,
            retention=self._retention,
            branches=True,
            runtime=self._runtime,
        )


def _is_little(sources: list[Source]) -> bool:
    return sum(source.tensor.nbytes for source in sources) < _LITTLE_BYTES


def _tell(message: Message) -> None:
    if isinstance(message, Notice):
        logger.warning("%s", message.message)


def _checked_step(step: int) -> int:
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise ConfigurationError(f"step={step!r} is not valid; pass the number of optimizer steps taken")
    return step


def _sources(items: list[WriteItem], planner: SavePlanner, assignment: Assignment) -> Iterator[Source]:
    for item in items:
        fqn, offsets = key_of(item.index)
        tensor = _tensor(planner.resolve_data(item), fqn)
        dtype, shape = form_of(tensor)
        spec = TensorSpec(dtype=dtype, shape=shape)
        known = assignment.known.get((fqn, offsets))
        same = known is not None and known.spec == spec
        yield Source(
            name=f"dcp/{fqn}@{','.join(map(str, offsets))}",
            spec=spec,
            tensor=tensor,
            known={section.start: section for section in known.sections} if known is not None and same else {},
        )


def _tensor(value: object, path: str) -> Tensor:
    """A tensor that can be stored; raises UnsupportedState with its path."""
    if not isinstance(value, Tensor):
        raise UnsupportedState(f"{path} is a {type(value).__qualname__}, where the plan says that it is a tensor")
    found = encode_tree(value, root=path).tensors[0]
    assert isinstance(found, Tensor)
    return found


def _value_result(item: WriteItem, planner: SavePlanner) -> WriteResult:
    data: Any = planner.resolve_data(item)
    path = item.index.fqn
    value = unpickled(data, path)
    encode_tree(value, root=path)  # here, where its path is known, and not on rank 0 after all have written
    return WriteResult(index=item.index, size_in_bytes=len(data.getbuffer()), storage_data=PlainValue(value))


def _result(item: WriteItem, piece: StoredPiece) -> WriteResult:
    assert item.tensor_data is not None
    if piece.spec.shape != tuple(item.tensor_data.chunk.sizes):
        raise ConfigurationError(
            f"{item.index.fqn} is {list(piece.spec.shape)}, but planned as {list(item.tensor_data.chunk.sizes)}: do "
            "not change a state dict while it is saved"
        )
    return WriteResult(index=item.index, size_in_bytes=piece.spec.length, storage_data=piece)


def _try_to(act: Any) -> None:
    try:
        act()
    except HoldfastError as error:
        logger.warning("what was written could not be deleted: %s", error)
