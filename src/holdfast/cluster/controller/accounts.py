"""What the controller keeps accounts of: how members stand, what they measured, and what deaths have cost."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.cluster.controller.losses import Cost, Length, Loss, Losses
from holdfast.cluster.controller.measured import Measured
from holdfast.cluster.controller.standing import Standing
from holdfast.cluster.core.members import Member, Role, View
from holdfast.cluster.core.notes import Account
from holdfast.cluster.save_account import SaveAccount
from holdfast.policy.ladder import Fall
from holdfast.runtime import Runtime


class Accounts:
    """Filled by the controller's loop; the live view and the record read it.

    Args:
        losses: What partial recoveries cost.
        synchronous: How the job trains.
        runtime: Clock.
        steps: That workers had taken when the job began, by place.
    """

    def __init__(
        self, losses: Losses, *, synchronous: bool, runtime: Runtime, steps: Mapping[int, int] | None = None
    ) -> None:
        self.standing = Standing(steps)
        self.measured = Measured()
        self._losses = losses
        self._synchronous = synchronous
        self._runtime = runtime

    @property
    def step(self) -> int:
        """That the training has come to, as workers last said."""
        return self.standing.step(synchronous=self._synchronous)

    def steps_of(self, member: Member) -> int:
        """What a worker has taken, as it last said; of a server: what all have taken."""
        return self.standing.steps_of(member.index) if member.role is Role.WORKER else self.step

    @property
    def pls(self) -> float | None:
        """The portion of lost samples by now; None: not metered."""
        return self._losses.pls

    def hear(self, sender: Member, report: bytes) -> None:
        """A member said how it goes."""
        self.standing.hear(sender, report, self._runtime.monotonic_s())
        if sender.role is Role.WORKER:
            self.measured.hear(sender, report)

    def died(self, member: Member) -> None:
        """Its speed counts no more, and nobody turns to it any more."""
        self.standing.forget(member)
        self._losses.forget(member)

    def lost(self, server: Member, worker: int, pushes: int) -> None:
        """Pushes of one worker are not in all rows of a new server."""
        self._losses.hear(server, worker, pushes)

    def settle(self, workers: int, *, at_once: bool = False) -> list[Loss]:
        """Losses of which every worker has told by now, of so many; or as many as did."""
        return self._losses.settle(self._length(self.step), workers=workers, at_once=at_once)

    def since_checkpoint(self) -> Cost:
        """What the death of a server costs, if nobody is left to say it more exactly."""
        return self._losses.since_checkpoint(self._length(self.step))

    def fall(self, lost_servers: int) -> Fall:
        """What it would mean to set rows of so many servers back to what was saved last."""
        return self._losses.fall(lost_servers, self._length(self.step))

    def paused(self, save: int, view: View, reports: Mapping[int, bytes]) -> None:
        """All workers wait for this save."""
        for worker, report in reports.items():
            if report:
                self.hear(view.member(Role.WORKER, worker), report)
        self.measured.saved(save)
        self._losses.saved(save, self.step)

    def committed(self, save: int) -> None:
        """It is a checkpoint."""
        self.measured.committed(save)
        self._losses.committed(save)

    def went_back(self, save: int) -> None:
        """Everyone goes back to it."""
        self.measured.went_back(save)
        self._losses.went_back(save)

    def again(self, steps: int) -> Cost:
        """What it costs that everyone takes so many steps again: no sample's effect is lost."""
        samples = self._losses.samples_of(steps, self._length(self.step))
        return Cost(steps=steps, samples=samples, pls=None if self.pls is None else 0.0)

    def note(self, step: int | None = None) -> Account:
        """For server 0: what goes with the checkpoint of a step; otherwise of the one that the training is at."""
        pls = self._losses.state(self._length(self.step if step is None else step))
        return Account(SaveAccount(pls=pls, metrics=self.measured.figures()).to_json())

    def _length(self, step: int) -> Length:
        standing = self.standing
        return Length(step=step, samples_per_step=standing.samples_per_step, samples=standing.expected_samples)
