"""Every push is applied exactly once and in order, whoever dies; and each rule of the protocol is seen to matter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from holdfast.cluster.core.controller import ControllerCore, Output, _Inquest
from holdfast.cluster.core.members import CONTROLLER, Member, View
from holdfast.cluster.core.messages import Applied, Message, NewView, Paused, Progress, Push, Send
from holdfast.cluster.core.server import ServerCore, _Heard
from holdfast.cluster.core.streams import Incoming
from holdfast.cluster.core.worker import WorkerCore, _Channel
from tests.cluster.core.simulation import Cores, Shard, Simulation

SCHEDULES, SCHEDULES_SLOW = 500, 20_000
ENOUGH = 1_500  # schedules in which a broken rule must show


@pytest.mark.parametrize("part", range(4))
def test_every_push_counts_once_whoever_dies(part: int) -> None:
    for seed in range(part, SCHEDULES, 4):
        Simulation(seed).run()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(4))
def test_every_push_counts_once_whoever_dies_in_very_many_schedules(part: int) -> None:
    for seed in range(SCHEDULES + part, SCHEDULES + SCHEDULES_SLOW, 4):
        Simulation(seed).run()


class AppliesAgain(ServerCore):
    """Applies whatever comes."""

    def _apply(self, sender: Member, heard: _Heard, push: Push) -> list[Send]:
        self._shard.apply(sender.index, push.number, push.gradients)
        heard.progress = push.progress
        return [Send(sender, Applied(push.number))]


class HearsTheDead(ServerCore):
    """Takes messages of older incarnations."""

    def is_replaced(self, member: Member) -> bool:
        return False


class ForgetsWhatRowsHold(ServerCore):
    """A new server believes that the rows it loaded hold nothing of what comes."""

    def _load(self, view: View) -> list[Send]:
        sends = super()._load(view)
        self._held = {}
        return sends


class AnswersBeforeItsRows(ServerCore):
    """A new server takes what comes while its rows are still being loaded."""

    def __init__(self, member: Member, shard: Shard, view: View | None = None) -> None:
        super().__init__(member, shard, view or View.first(servers=3, workers=3))


class DoesNotSendAgain(WorkerCore):
    """A new server gets only what is pushed from now on."""

    def _send_again(self, index: int, channel: _Channel) -> Iterator[Send]:
        sends = list(super()._send_again(index, channel))
        return iter(sends[:1])


class PullsOnce(WorkerCore):
    """What was asked of a dead server is not asked of the new one."""

    def _send_again(self, index: int, channel: _Channel) -> Iterator[Send]:
        channel.pulls.clear()
        return super()._send_again(index, channel)


class BelievesTheDead(WorkerCore):
    """Takes the word of a server that was replaced."""

    def handle(self, sender: Member, message: Message) -> list[Send]:
        if self._view is not None and not self.ended and sender != CONTROLLER:
            return self._from_server(sender, message)
        return super().handle(sender, message)


class PausesAtOnce(WorkerCore):
    """Says that nothing is in flight while something is."""

    def _report_pause(self) -> Iterator[Send]:
        if self._pause is not None and not self._is_reported:
            self._is_reported = True
            yield Send(CONTROLLER, Paused(self._pause, self._progress))


class OwesNothing(WorkerCore):
    """Pauses before it has made up for its predecessor."""

    def handle(self, sender: Member, message: Message) -> list[Send]:
        self._owed = 0
        sends = super().handle(sender, message)
        self._owed = 0
        return sends


class PausesForEver(WorkerCore):
    """Waits for a save that a death has ended."""

    def _adopt_view(self, view: View) -> Iterator[Send]:
        pause = self._pause
        yield from super()._adopt_view(view)
        self._pause = pause


class TakesTheMost(ControllerCore):
    """A new worker goes on behind the last push that any server has applied."""

    def _conclude(self, inquest: _Inquest) -> Iterator[Output]:
        if inquest.found:
            most = max(inquest.found.values(), key=lambda each: each.pushed)
            inquest.found = dict.fromkeys(range(len(self.view.servers)), most)
        return super()._conclude(inquest)


class ForgetsNewServers(ControllerCore):
    """A new worker goes on where the old servers stand, whatever the new ones lack."""

    def _conclude(self, inquest: _Inquest) -> Iterator[Output]:
        if inquest.found:
            inquest.stable = Progress(10**9, None)
        return super()._conclude(inquest)


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


class OverlooksGaps(Incoming):
    """Goes on behind frames that were lost."""

    def accept(self, number: int) -> bool:
        return True


MUTANTS: Mapping[str, Cores] = {
    "a push is applied once": Cores(server=AppliesAgain),
    "messages of older incarnations are dropped": Cores(server=HearsTheDead),
    "what loaded rows hold is not applied again": Cores(server=ForgetsWhatRowsHold),
    "a new server answers when its rows are there": Cores(server=AnswersBeforeItsRows),
    "what is not applied is sent again": Cores(worker=DoesNotSendAgain),
    "what is not answered is asked again": Cores(worker=PullsOnce),
    "a dead server's word counts for nothing": Cores(worker=BelievesTheDead),
    "a worker pauses when everything is applied": Cores(worker=PausesAtOnce),
    "a worker makes up for its predecessor before it pauses": Cores(worker=OwesNothing),
    "a view ends a pause": Cores(worker=PausesForEver),
    "a new worker goes on behind what all have applied": Cores(controller=TakesTheMost),
    "a server that died with a worker counts as far as it was known to be": Cores(controller=ForgetsNewServers),
    "a death ends a save": Cores(controller=SavesThroughDeaths),
    "a save waits until everyone is at work": Cores(controller=SavesWhileSomebodyIsMissing),
    "everyone is told of a death": Cores(controller=KeepsViewsToItself),
    "a gap ends a stream": Cores(incoming=OverlooksGaps),
}


@pytest.mark.parametrize("rule", MUTANTS)
def test_the_simulation_finds_out_when_a_rule_is_taken_away(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Simulation, "PATIENCE", 20_000)
    for seed in range(ENOUGH):
        try:
            Simulation(seed, MUTANTS[rule]).run()
        except (AssertionError, LookupError):
            return
    pytest.fail(f"nobody missed it in {ENOUGH} schedules")
