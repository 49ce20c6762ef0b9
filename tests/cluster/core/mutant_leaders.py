"""Controllers and heirs without one of the rules of the protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.cluster.core.controller import ControllerCore
from holdfast.cluster.core.inquest import Inquest
from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.core.messages import GoOn, NewView, Pause, Send
from holdfast.cluster.core.outputs import Output
from holdfast.cluster.core.progress import BEGINNING, Progress
from holdfast.cluster.core.save import Save


class TakesTheMost(ControllerCore):
    """A new worker goes on behind the last push that any server has applied."""

    def _close(self, inquest: Inquest) -> Iterator[Output]:
        if inquest.found:
            most = max(inquest.found.values(), key=lambda each: each.pushed)
            inquest.found = dict.fromkeys(range(len(self.view.servers)), most)
        return super()._close(inquest)


class ForgetsNewServers(ControllerCore):
    """A new worker goes on where the old servers stand, whatever the new ones lack."""

    def _close(self, inquest: Inquest) -> Iterator[Output]:
        if inquest.found:
            inquest.stable = Progress(10**9, None)
        return super()._close(inquest)


class SavesThroughDeaths(ControllerCore):
    """A save goes on though somebody has died."""

    def died(self, member: Member) -> list[Output]:
        save = self._save
        outputs = super().died(member)
        self._save = save
        return outputs


class KeepsViewsToItself(ControllerCore):
    """Nobody is told of a death."""

    def died(self, member: Member) -> list[Output]:
        return [
            each for each in super().died(member) if not (isinstance(each, Send) and isinstance(each.message, NewView))
        ]


class SavesWhileSomebodyIsMissing(ControllerCore):
    """A save begins before everyone is at work again."""

    @property
    def is_whole(self) -> bool:
        return True


class GoesOnInPart(ControllerCore):
    """Replaces a server in synchronous training, and lets the others go on."""

    @property
    def _is_full(self) -> bool:
        return False


class LosesTheCalledBack(ControllerCore):
    """Does not notice that somebody died before it had gone back."""

    def died(self, member: Member) -> list[Output]:
        return [] if member in self._called_back else super().died(member)


class StartsEarly(ControllerCore):
    """Workers start when the first server has gone back."""

    def _start_all(self) -> Iterator[Output]:
        loading, self._loading = self._loading, set()
        told, self._told = self._told, {*self._told, *self._members(Role.SERVER)}
        outputs = list(super()._start_all())
        started = {each for each in self._told if each.role is Role.WORKER}
        self._loading, self._told = loading, told | started
        yield from outputs


class GoesBackToCopies(ControllerCore):
    """Goes back to a save that is copied and not committed."""

    def _saved(self, save: Save) -> Iterator[Output]:
        self._keep(save.number, save.progress)
        return super()._saved(save)


class LetsThemWait(ControllerCore):
    """Workers do not hear that a save failed."""

    def call_off(self, save: int, problem: str) -> list[Output]:
        outputs = super().call_off(save, problem)
        return [each for each in outputs if not (isinstance(each, Send) and isinstance(each.message, GoOn))]


class CountsTheDead(ControllerCore):
    """A worker that had finished counts as finished though another has taken its place."""

    @property
    def _wants_end(self) -> bool:
        finished = {each.index for each in self._ever_finished}
        return self._is_stopping or finished.issuperset(range(len(self.view.workers)))

    @property
    def _ever_finished(self) -> set[Member]:
        known: set[Member] = self.__dict__.setdefault("known", set())
        known.update(self._finished)
        return known


class EndsBeforeItsSave(ControllerCore):
    """Everyone ends when the last save is copied."""

    def _saved(self, save: Save) -> Iterator[Output]:
        yield from super()._saved(save)
        if self._last is not None and self._wants_end:
            yield from self.end()


class ForgetsEarlierLives(ControllerCore):
    """A worker that joins is the first in its place, whoever was there before."""

    def _conclude(self) -> list[Output]:
        count = self._wanted_workers or 0
        self._lives[len(self.view.workers) :] = [0] * max(0, count - len(self.view.workers))
        return super()._conclude()


class JoinsAtTheBeginning(ControllerCore):
    """A worker that joins synchronous training counts its steps from 0."""

    @property
    def _places(self) -> Mapping[int, Progress]:
        saved = self._progress
        return {worker: saved.get(worker, BEGINNING) for worker in range(len(self._lives))}


class ForgetsWhoLeft(ControllerCore):
    """A checkpoint says how far those came who are there, and nobody else."""

    @property
    def _absent(self) -> Mapping[int, Progress]:
        return {}


def _is_second_pause(send: Send) -> bool:
    return isinstance(send.message, Pause) and send.message.step > 0


class LetsThemPauseApart(ControllerCore):
    """In synchronous training, a worker may pause a step behind the others."""

    def handle(self, sender: Member, message: Any) -> list[Output]:
        outputs = super().handle(sender, message)
        return [
            each
            for each in outputs
            if not (isinstance(each, Send) and isinstance(each.message, Pause) and each.message.step)
        ]


class ForgetsWhoComesLate(ControllerCore):
    """A process that comes up after the end is not told of it."""

    def up(self, member: Member) -> list[Output]:
        return [] if self.ended else super().up(member)
