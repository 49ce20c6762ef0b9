"""Moves rows and gradients between one worker and its servers, over sockets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.cluster.core.members import CONTROLLER, Member
from holdfast.cluster.core.messages import Failed, NewView, Send
from holdfast.cluster.core.notes import Stats
from holdfast.cluster.core.worker import WorkerCore
from holdfast.cluster.link import Link
from holdfast.cluster.payload import FoundRows, Gradients, WantedRows
from holdfast.cluster.placement import ROW_MASK, Keys, Placement
from holdfast.cluster.train.exchange import Pulled, PushedStep
from holdfast.runtime import SYSTEM

_PATIENCE_S = 0.2  # between two looks at whether the controller is still there


class LifeOver(BaseException):
    """The worker was told to end, or to begin again elsewhere. Nothing of a user's is meant to catch it."""


class SocketExchange:
    """A worker's side of the protocol. Whatever waits lets in what arrives; ``let_in`` does so once in a step.

    Args:
        link: To the others.
        core: The worker's state machine.
        placement: Of the model's rows.

    Attributes:
        waited_s: For rows, or for credits, in all.
    """

    def __init__(self, link: Link, core: WorkerCore, placement: Placement) -> None:
        self._link = link
        self._core = core
        self._placement = placement
        self._dense_wanted: dict[int, bool] = {}  # by pull that is not taken
        self.waited_s = 0.0

    @property
    def unapplied(self) -> int:
        """Its last pushes that some server is not known to have applied."""
        return self._core.unapplied

    def pull(self, keys: Sequence[Keys], *, dense: bool = True) -> int:
        """Ask for rows, as soon as there are credits for it."""
        self._until(lambda: self._core.may_pull)
        cuts = [group.cuts(each).tolist() for group, each in zip(self._placement.groups, keys, strict=True)]
        rows = [each & ROW_MASK for each in keys]
        wanted = [
            WantedRows(rows=[found[cut[s] : cut[s + 1]] for found, cut in zip(rows, cuts, strict=True)], dense=dense)
            for s in range(self._placement.servers)
        ]
        self._link.send(self._core.pull([each.to_arrays() for each in wanted]))
        self._dense_wanted[self._core.pulled] = dense
        return self._core.pulled

    def is_there(self, number: int) -> bool:
        """Whether the answers of all servers have come."""
        return self._core.is_answered(number)

    def take(self, number: int) -> Pulled:
        """Wait for the answers of all servers."""
        self._until(lambda: self._core.is_answered(number))
        answers = self._core.taken(number)
        assert answers is not None
        dense = self._dense_wanted.pop(number)
        found = [FoundRows.from_arrays(answers[server], dense=dense) for server in range(self._placement.servers)]
        rows = [[each.rows[group] for each in found] for group in range(len(self._placement.groups))]
        pieces = [each.dense for each in found if each.dense is not None]
        return Pulled(rows=rows, dense=pieces if dense else None)

    def push(self, step: PushedStep) -> None:
        """Send a step's gradients, as soon as there are credits for it."""
        self._until(lambda: self._core.may_push)
        groups = self._placement.groups
        cuts = [group.cuts(each).tolist() for group, each in zip(groups, step.keys, strict=True)]
        rows = [each & ROW_MASK for each in step.keys]
        pushes = []
        for server, piece in enumerate(self._placement.dense):
            slices = [slice(cut[server], cut[server + 1]) for cut in cuts]
            gradients = Gradients(
                rows=[found[part] for found, part in zip(rows, slices, strict=True)],
                values=[found[part] for found, part in zip(step.gradients, slices, strict=True)],
                dense=step.dense[piece.start : piece.end],
                lr_tables=step.lr_tables,
                lr_dense=step.lr_dense,
            )
            pushes.append(gradients.to_arrays())
        self._link.send(self._core.push(pushes, step.place))

    def tell(self, report: bytes) -> None:
        """How it goes, to the controller."""
        self._link.send([Send(CONTROLLER, Stats(report))])

    def fail(self, problem: str) -> None:
        """The training cannot go on: tell the controller, and wait until it ends the job."""
        self._link.send([Send(CONTROLLER, Failed(problem))])
        self._until(lambda: False)

    def finish(self) -> None:
        """The data have ended: stay until everyone is done. Ends with ``LifeOver``."""
        self._link.send(self._core.finish())
        self._until(lambda: False)

    def start(self) -> bytes | None:
        """Wait until it is known where this worker goes on; the place in the data, or None for the beginning."""
        self._until(lambda: self._core.view is not None)
        place: bytes | None = self._core.progress.place
        return place

    def let_in(self, timeout_s: float = 0.0) -> None:
        """Handle what has arrived; wait for something, for so long at most."""
        for sender, message in self._link.receive(timeout_s):
            self._handle(sender, message)
        if self._link.is_orphaned:
            self._link.send(self._core.controller_lost())
        if self._core.is_adrift:
            self._link.await_replacement()
        if self._core.ended or self._link.is_dismissed or self._link.is_forsaken:
            raise LifeOver

    def _handle(self, sender: Member, message: object) -> None:
        self._link.send(self._core.handle(sender, message))  # type: ignore[arg-type]
        if isinstance(message, NewView):
            self._link.adopt(message.view)

    def _until(self, is_met: Callable[[], bool]) -> None:
        if is_met():
            return
        began_s = SYSTEM.monotonic_s()
        while not is_met():
            self.let_in(_PATIENCE_S)
        self.waited_s += SYSTEM.monotonic_s() - began_s
