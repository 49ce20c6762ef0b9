"""Redundancy is told to be whole when every row is there and in every parity, whoever dies before it is heard."""

from __future__ import annotations

from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.core.messages import Send
from holdfast.cluster.core.outputs import Protected
from holdfast.cluster.core.parity_messages import Redundant
from tests.cluster.core import mutant_parity as mutants
from tests.cluster.core.ring import Ring
from tests.cluster.core.world import Cores


class Scene:
    """Two hosts and both members of a stripe, of which nobody but the members knows that the first host is bare.

    The second host has no parity when the members lose their rows. So these come from saves, and the first host
    drops its parity. The members die before they are heard, one after the other, and their rows come from the second
    host, which has encoded its parities meanwhile. The first one does not get to it.
    """

    def __init__(self, cores: Cores) -> None:
        self.ring = Ring(8, data=2, rows=4, cores=cores)
        layout = self.ring.layout
        stripe = next(each for each, members in layout.members.items() if len(members) == 2)
        self.bare, second = layout.hosts[stripe]
        self._others = [index for index in range(8) if index != self.bare]
        members = layout.members[stripe]
        self.ring.kill(second)
        self.ring.advance_rows(second)
        self._lives = {Member(Role.SERVER, each, 2) for each in members}
        self.ring.is_lost = self._is_lost
        self.ring.kill(*members)
        self.ring.advance_all(*self._others)
        self.ring.told.clear()
        for each in members:
            self.ring.kill(each)
            self.ring.advance_all(*self._others)

    def _is_lost(self, sender: Member, send: Send) -> bool:
        return isinstance(send.message, Redundant) and sender in self._lives

    @property
    def is_told(self) -> bool:
        """Whether redundancy was told to be whole, since the members died."""
        return any(isinstance(each, Protected) for each in self.ring.told)


def test_redundancy_is_not_whole_while_a_host_is_bare_of_which_only_the_dead_knew() -> None:
    scene = Scene(Cores())
    assert scene.ring.host(scene.bare).lacks and not scene.is_told
    scene.ring.advance_all()
    assert scene.is_told and all(core.is_whole for core in scene.ring.cores.values())


def test_without_that_rule_it_is_told_too_early() -> None:
    scene = Scene(Cores(controller=mutants.BelievesFormerViews))
    assert scene.ring.host(scene.bare).lacks and scene.is_told


def test_a_controller_keeps_books_of_those_who_live_only() -> None:
    ring = Ring(4, data=2, rows=2)
    for _ in range(3):
        ring.kill(0, 1, 2)  # so that rows come from saves
        ring.advance_all()
    coverage = ring.controller._coverage
    assert coverage._dropped and all(
        ring.controller.view.holds(each) for each in {**coverage._whole, **coverage._dropped}
    )
