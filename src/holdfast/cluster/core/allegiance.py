"""Whose orders a member follows."""

from __future__ import annotations

from typing import TypeAlias

from holdfast.cluster.core.members import CONTROLLER, Member, Role, View
from holdfast.cluster.core.messages import (
    Broken,
    CallOff,
    End,
    GoBack,
    GoOn,
    Load,
    Message,
    NewView,
    Pause,
    SavePriority,
    Send,
    Snapshot,
    Start,
    Survey,
)
from holdfast.cluster.core.parity_messages import FallBack, Hurry, Rebuild

Order: TypeAlias = (
    NewView | GoBack | Load | Rebuild | FallBack | Hurry | Start
    | Pause | Survey | Snapshot | CallOff | GoOn | SavePriority | End
)  # fmt: skip


class Allegiance:
    """To the controller; to its heir, server 0, once the controller is lost.

    A server that cannot reach the controller takes it for dead. The others follow only when they have lost it too:
    otherwise it is the server that is cut off, and another is about to take its place.

    Attributes:
        leader: Whose orders are followed.
        is_adrift: Whether one of the controller's may be missing. Another has to take this member's place.
    """

    def __init__(self) -> None:
        self.leader = CONTROLLER
        self.is_adrift = False
        self._early: list[tuple[Member, Message]] = []

    def allows(self, sender: Member, message: Message) -> bool:
        """Whether a message is to be handled. What an heir says too early is kept."""
        if not isinstance(message, Order) or sender == self.leader:
            return True
        if sender.role is Role.SERVER:
            self._early.append((sender, message))
        return False

    def report(self, broken: Broken) -> list[Send]:
        """Tell the leader of frames that are missing here. An orphan misses nothing that the controller says."""
        is_controllers = broken.member.role is Role.CONTROLLER
        if is_controllers and self.leader.role is not Role.CONTROLLER:
            return []
        self.is_adrift = is_controllers
        return [Send(self.leader, broken)]

    def lose_controller(self, view: View) -> list[tuple[Member, Message]]:
        """Follow the heir from now on; what it has said so far."""
        self.leader = view.member(Role.SERVER, 0)
        early, self._early = self._early, []
        return early
