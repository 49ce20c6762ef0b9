"""Deaths until they are made up for: which rung it was, how long it took, what it cost."""

from __future__ import annotations

from holdfast.cluster.controller.losses import Cost, Loss
from holdfast.cluster.controller.recoveries import Recoveries
from holdfast.cluster.controller.redundancy import Redundancy
from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.happenings import Event, Recovered, Replaced, Started
from holdfast.runtime import Runtime

SERVER, OTHER = Member(Role.SERVER, 1, 2), Member(Role.SERVER, 0, 2)
WORKER = Member(Role.WORKER, 0, 2)


class Stage:
    """Recoveries of a job that is only told."""

    def __init__(self, *, parity: bool = True) -> None:
        self.now_s = 100.0
        self.heard: list[Event] = []
        self.runtime = Runtime(monotonic_s=lambda: self.now_s, wall_s=lambda: 1000 + self.now_s)
        self.told = Recoveries(self.heard.append, self.runtime, parity=parity)

    def die(self, member: Member, *, by_spare: bool = False, loses: bool = True) -> None:
        self.told.begin(member, by_spare=by_spare, loses=loses)

    def recovered(self) -> list[Recovered]:
        return [each for each in self.heard if isinstance(each, Recovered)]

    def settle(self, *, after_s: float = 0.0, otherwise: Cost | None = None) -> list[Recovered]:
        self.now_s += after_s
        self.told.settle(otherwise)
        return self.recovered()


def test_rows_from_parity_cost_nothing_but_time() -> None:
    stage = Stage()
    stage.die(SERVER, by_spare=True)
    stage.die(WORKER)
    assert stage.told.lost_servers == 1
    stage.now_s += 3
    stage.told.restored(SERVER, 900, 0)
    assert stage.told.end() and not stage.told.end()
    assert [(each.member, each.by_spare, each.took_s) for each in stage.heard if isinstance(each, Replaced)] == [
        (SERVER, True, 3.0),
        (WORKER, False, 3.0),
    ]
    (found,) = stage.recovered()
    assert (found.member, found.rung, found.rows, found.took_s) == (SERVER, "parity", 900, 3.0)
    assert (found.lost_steps, found.lost_samples, found.lost_pls) == (0, 0.0, 0.0)


def test_rows_from_saves_are_told_of_once_their_cost_is_known() -> None:
    stage = Stage()
    stage.die(SERVER)
    stage.die(OTHER)
    stage.told.restored(SERVER, 1000, 100)
    stage.told.restored(OTHER, 1000, 50)
    stage.told.end()
    assert stage.settle(after_s=1.0) == []
    assert stage.told.lost_servers == 2  # another death is weighed with what these cost
    stage.told.lost(Loss(server=SERVER, cost=Cost(steps=30, samples=960.0, pls=0.01), pls=0.03))
    (found,) = stage.settle()
    assert (found.member, found.rung, found.rows, found.saved_rows) == (SERVER, "partial", 900, 100)
    assert (found.lost_steps, found.lost_samples, found.lost_pls, found.at_s) == (30, 960.0, 0.01, 1100.0)
    assert len(stage.settle(after_s=60.0)) == 1  # that nobody says anything does not mean that nothing is lost
    stage.told.lost(Loss(server=OTHER, cost=Cost(), pls=0.03))
    assert [each.lost_steps for each in stage.settle()] == [30, 0]
    assert stage.told.lost_servers == 0


def test_without_parity_every_lost_row_comes_from_a_save() -> None:
    stage = Stage(parity=False)
    stage.die(SERVER)
    stage.told.lost(Loss(server=SERVER, cost=Cost(steps=3, samples=None, pls=None), pls=None))
    stage.told.end()
    (found,) = stage.settle()
    assert (found.rung, found.lost_steps, found.lost_samples, found.lost_pls) == ("partial", 3, None, None)


def test_a_server_that_dies_before_anybody_trains_loses_nothing() -> None:
    """Workers have nothing to say of it: its rows are those of the checkpoint from which all begin."""
    stage = Stage(parity=False)
    stage.die(SERVER, loses=False)
    stage.told.end()
    (found,) = stage.settle()
    assert (found.lost_steps, found.lost_samples) == (0, 0.0)


def test_a_going_back_costs_steps_that_are_taken_again() -> None:
    stage = Stage()
    stage.die(SERVER)
    stage.told.lost(Loss(server=SERVER, cost=Cost(steps=30), pls=None))  # rows that will be loaded anew
    stage.told.went_back(Cost(steps=80, samples=2560.0, pls=0.0))
    stage.told.goes_on(Member(Role.SERVER, 1, 3))
    stage.told.end()
    (found,) = stage.recovered()
    assert (found.member.incarnation, found.rung, found.lost_steps, found.lost_pls) == (3, "full", 80, 0.0)
    stage.die(OTHER)
    stage.told.end()
    assert stage.recovered()[-1].rung == "parity"


def test_a_place_that_is_lost_twice_counts_from_the_first_death_and_is_told_of_once() -> None:
    stage = Stage()
    stage.die(SERVER, by_spare=True)
    stage.now_s += 2
    stage.die(Member(Role.SERVER, 1, 3))
    stage.now_s += 1
    stage.told.end()
    (found,) = stage.recovered()
    assert (found.member.incarnation, found.took_s) == (3, 3.0)


def test_a_server_that_dies_before_it_is_known_what_it_lacks_is_told_of_with_its_successor() -> None:
    stage = Stage(parity=False)
    stage.die(SERVER)
    stage.told.end()
    assert stage.settle(after_s=2.0) == []
    stage.die(Member(Role.SERVER, 1, 3))
    assert stage.told.lost_servers == 1
    stage.now_s += 1
    stage.told.end()
    stage.told.lost(Loss(server=Member(Role.SERVER, 1, 3), cost=Cost(steps=30), pls=None))
    (found,) = stage.settle()
    assert (found.member.incarnation, found.lost_steps, found.took_s) == (3, 30, 3.0)


def test_what_is_left_at_the_end_is_told() -> None:
    stage = Stage(parity=False)
    assert stage.told.start() and not stage.told.start()
    assert isinstance(stage.heard[0], Started)
    stage.die(SERVER)
    stage.told.end()
    (found,) = stage.settle(otherwise=Cost(steps=40, samples=None, pls=None))
    assert (found.lost_steps, found.lost_samples, found.lost_pls) == (40, None, None)


def test_redundancy_tells_since_when_a_row_lacked_a_parity() -> None:
    stage = Stage()
    kept = Redundancy(runtime=stage.runtime)
    stage.now_s += 1
    (found,) = kept.protected(15)
    assert (found.records, found.took_s) == (15, 1.0)
    assert not list(kept.protected(0))
    stage.now_s += 10
    kept.lay_bare()
    stage.now_s += 2
    kept.lay_bare()
    (found,) = kept.protected(5)
    assert (found.records, found.took_s) == (5, 2.0)
