"""Workers, streams and orphans without one of the rules of the protocol."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from holdfast.cluster.core.allegiance import Allegiance
from holdfast.cluster.core.members import CONTROLLER, Member, View
from holdfast.cluster.core.messages import Applied, Broken, Exhausted, Message, Pause, Paused, Rows, Send, Survey
from holdfast.cluster.core.server import ServerCore
from holdfast.cluster.core.streams import Incoming
from holdfast.cluster.core.worker import WorkerCore, _Channel
from tests.cluster.core.world import Cores


class DoesNotSendAgain(WorkerCore):
    """A new server gets only what is pushed from now on."""

    def _send_again(self, index: int, channel: _Channel) -> Iterator[Send]:
        return iter(list(super()._send_again(index, channel))[:1])


class PullsOnce(WorkerCore):
    """What was asked of a dead server is not asked of the new one."""

    def _send_again(self, index: int, channel: _Channel) -> Iterator[Send]:
        channel.pulls.clear()
        return super()._send_again(index, channel)


class BelievesTheDead(WorkerCore):
    """Takes the word of a server that was replaced."""

    def handle(self, sender: Member, message: Message) -> list[Send]:
        if self._view is not None and not self.ended and isinstance(message, Rows | Applied):
            return self._from_server(sender, message)
        return super().handle(sender, message)


class PausesAtOnce(WorkerCore):
    """Says that nothing is in flight while something is."""

    def _report_pause(self) -> Iterator[Send]:
        if self._pause is not None and not self._is_reported:
            self._is_reported = True
            yield Send(self._allegiance.leader, Paused(self._pause.save, self._progress, b""))


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


class EndsInSilence(WorkerCore):
    """Does not tell servers that its data have ended."""

    def finish(self) -> list[Send]:
        return [each for each in super().finish() if not isinstance(each.message, Exhausted)]


class FallsBehind(WorkerCore):
    """Does not count the steps that others take when its own data have ended."""

    def _note_applied(self, channel: _Channel, number: int) -> None:
        if not self.finished or channel.pushes:
            super()._note_applied(channel, number)


class OverlooksGaps(Incoming):
    """Goes on behind frames that were lost."""

    def accept(self, number: int) -> bool:
        return True


class AnswersInAnyViewAsServer(ServerCore):
    """Answers an heir that knows others to be alive."""

    def handle(self, sender: Member, message: Message) -> list[Send]:
        if isinstance(message, Survey) and self._view is not None:
            message = replace(message, view=self._view.number)
        return super().handle(sender, message)


class AnswersInAnyViewAsWorker(WorkerCore):
    """Answers an heir that knows others to be alive."""

    def handle(self, sender: Member, message: Message) -> list[Send]:
        if isinstance(message, Pause) and self._view is not None:
            message = replace(message, view=self._view.number)
        return super().handle(sender, message)


ANSWERS_IN_ANY_VIEW = Cores(server=AnswersInAnyViewAsServer, worker=AnswersInAnyViewAsWorker)


class FollowsAnyHeir(Allegiance):
    """Follows a server that says that the controller is dead."""

    def allows(self, sender: Member, message: Message) -> bool:
        if sender != CONTROLLER and super().allows(sender, message) is False:
            self.leader = sender
        return True


class ForgetsWhatAnHeirSaid(Allegiance):
    """An heir is heard only from the moment on at which the controller is lost here as well."""

    def lose_controller(self, view: View) -> list[tuple[Member, Message]]:
        super().lose_controller(view)
        return []


class KeepsGapsToItself(Allegiance):
    """Nobody hears of frames that are missing here."""

    def report(self, broken: Broken) -> list[Send]:
        return []


class MissesOrders(Allegiance):
    """Says nothing where they are the controller's."""

    def report(self, broken: Broken) -> list[Send]:
        return [] if broken.member == CONTROLLER else super().report(broken)


def following(allegiance: type[Allegiance]) -> Cores:
    """Members that follow others."""

    class Server(ServerCore):
        def __init__(self, *args: Any, **modes: Any) -> None:
            super().__init__(*args, **modes)
            self._allegiance = allegiance()

    class Worker(WorkerCore):
        def __init__(self, *args: Any, **modes: Any) -> None:
            super().__init__(*args, **modes)
            self._allegiance = allegiance()

    return Cores(server=Server, worker=Worker)
