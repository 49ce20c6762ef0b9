"""Whose orders a member follows."""

from __future__ import annotations

from typing import TypeAlias

from holdfast.cluster.core.members import CONTROLLER, Member, Role, View
from holdfast.cluster.core.messages import (
    CallOff,
    End,
    GoBack,
    GoOn,
    Load,
    Message,
    NewView,
    Pause,
    SavePriority,
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
    """

    def __init__(self) -> None:
        self.leader = CONTROLLER
        self._early: list[tuple[Member, Message]] = []

    def allows(self, sender: Member, message: Message) -> bool:
        """Whether a message is to be handled. What an heir says too early is kept."""
        if not isinstance(message, Order) or sender == self.leader:
            return True
        if sender.role is Role.SERVER:
            self._early.append((sender, message))
        return False

    def lose_controller(self, view: View) -> list[tuple[Member, Message]]:
        """Follow the heir from now on; what it has said so far."""
        self.leader = view.member(Role.SERVER, 0)
        early, self._early = self._early, []
        return early
