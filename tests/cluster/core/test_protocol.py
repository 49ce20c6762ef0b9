"""Every push counts once and in order, whoever dies; and each rule of the protocol is seen to matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import pytest

from holdfast.cluster.core.controller import Recovery
from holdfast.cluster.core.members import Role
from holdfast.cluster.core.messages import Message
from holdfast.cluster.core.notes import Note
from holdfast.cluster.core.parity_messages import FallBack, OutOfReach, ParityMessage, Rebuild, Rebuilt, Redundant
from tests.cluster.core import mutant_leaders as leaders
from tests.cluster.core import mutant_members as members
from tests.cluster.core import mutant_servers as servers
from tests.cluster.core.mutant_members import following
from tests.cluster.core.mutant_servers import paced
from tests.cluster.core.simulation import Simulation
from tests.cluster.core.world import Cores, Ending

OF_PARITY = {*get_args(ParityMessage), Rebuild, FallBack, OutOfReach, Rebuilt, Redundant}
SCHEDULES, SCHEDULES_SLOW = 500, 20_000
ENOUGH = 1_500  # schedules in which a broken rule must show


@pytest.mark.parametrize("part", range(4))
def test_every_push_counts_once_whoever_dies(part: int) -> None:
    for seed in range(part, SCHEDULES, 4):
        Simulation(seed).run()


def test_no_message_of_the_protocol_goes_unused() -> None:
    unused = set(get_args(Message)) - set(get_args(Note)) - OF_PARITY
    for seed in range(SCHEDULES):
        (simulation := Simulation(seed)).run()
        unused -= simulation.network.kinds
        if not unused:
            return
    pytest.fail(f"nobody ever got {unused}")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(4))
def test_every_push_counts_once_whoever_dies_in_very_many_schedules(part: int) -> None:
    for seed in range(SCHEDULES + part, SCHEDULES + SCHEDULES_SLOW, 4):
        Simulation(seed).run()


# Jobs in which a rule matters.
PARTIAL = {"synchronous": False, "recovery": Recovery.PARTIAL, "resizes": 0, "ending": Ending.DATA, "faults": 8}
FULL = {"recovery": Recovery.FULL, "ending": Ending.DATA, "faults": 8}
IN_STEP = {"synchronous": True, "ending": Ending.DATA, "faults": 8}
IN_STEP_LATE = {**IN_STEP, "faults": 3, "resizes": 0, "slow": Role.CONTROLLER}
IN_STEP_UNHARMED = {"synchronous": True, "ending": Ending.DATA, "faults": 0, "resizes": 0}
RESIZED = {"resizes": 3, "ending": Ending.DATA}
RAISED = {"ending": Ending.FAILURE, "faults": 8}
TIGHT = {"tight": True, "faults": 0, "ending": Ending.DATA}
ORPHANED = {"ending": Ending.ORPHANS, "faults": 3}
ORPHANED_LATE = {**PARTIAL, "ending": Ending.ORPHANS, "faults": 14, "saves": 0, "slow": Role.CONTROLLER}

MUTANTS: Mapping[str, tuple[Cores, Mapping[str, Any]]] = {
    "a push is applied once": (paced(servers.AppliesAgain), PARTIAL),
    "messages of older incarnations are dropped": (Cores(server=servers.HearsTheDead), PARTIAL),
    "what loaded rows hold is not applied again": (Cores(server=servers.ForgetsWhatRowsHold), PARTIAL),
    "a new server answers when its rows are there": (Cores(server=servers.AnswersBeforeItsRows), PARTIAL),
    "rows saved between checkpoints say what they hold": (Cores(server=servers.SavesWithoutProgress), PARTIAL),
    "a copy of the dense part does not undo pushes": (Cores(server=servers.TakesEveryCopy), PARTIAL),
    "what is not applied is sent again": (Cores(worker=members.DoesNotSendAgain), PARTIAL),
    "what is not answered is asked again": (Cores(worker=members.PullsOnce), PARTIAL),
    "a dead server's word counts for nothing": (
        Cores(worker=members.BelievesTheDead),
        {**PARTIAL, "faults": 12, "saves": 40},
    ),
    "a worker pauses when everything is applied": (Cores(worker=members.PausesAtOnce), PARTIAL),
    "a worker makes up for its predecessor before it pauses": (Cores(worker=members.OwesNothing), PARTIAL),
    "a view ends a pause": (Cores(worker=members.PausesForEver), PARTIAL),
    "a new worker goes on behind what all have applied": (Cores(controller=leaders.TakesTheMost), PARTIAL),
    "a server that died with a worker counts as far as it was known to be": (
        Cores(controller=leaders.ForgetsNewServers),
        PARTIAL,
    ),
    "a death ends a save": (Cores(controller=leaders.SavesThroughDeaths), PARTIAL),
    "a save waits until everyone is at work": (Cores(controller=leaders.SavesWhileSomebodyIsMissing), PARTIAL),
    "everyone is told of a death": (Cores(controller=leaders.KeepsViewsToItself), PARTIAL),
    "a gap ends a stream": (Cores(incoming=members.OverlooksGaps), PARTIAL),
    "a step is applied when all servers hold it": (paced(servers.AppliesOnItsOwn), IN_STEP),
    "what is not promised of a dead worker is given up": (paced(servers.KeepsWhatIsNotPromised), IN_STEP),
    "what is promised is kept": (paced(servers.BreaksItsPromise), IN_STEP),
    "a promise is repeated to a server that is new": (paced(servers.PromisesOnce), IN_STEP_LATE),
    "rows are those after exactly so many steps": (paced(servers.AnswersAtOnce), IN_STEP),
    "gradients are averaged in the order of workers": (paced(servers.AppliesAsItComes), IN_STEP),
    "servers copy when the last step is applied": (paced(servers.CopiesTooEarly), IN_STEP_UNHARMED),
    "nobody pauses a step behind the others": (Cores(controller=leaders.LetsThemPauseApart), IN_STEP_UNHARMED),
    "steps go on without whose data have ended": (Cores(worker=members.EndsInSilence), IN_STEP_UNHARMED),
    "whose data have ended counts the others' steps": (Cores(worker=members.FallsBehind), IN_STEP_UNHARMED),
    "a server's death sets everyone back": (Cores(controller=leaders.GoesOnInPart), IN_STEP),
    "who dies before it went back is replaced": (Cores(controller=leaders.LosesTheCalledBack), FULL),
    "workers start when all servers went back": (Cores(controller=leaders.StartsEarly), FULL),
    "a checkpoint is what is committed": (Cores(controller=leaders.GoesBackToCopies), FULL),
    "workers go on when a save fails": (Cores(controller=leaders.LetsThemWait), TIGHT),
    "whoever takes a finished worker's place finishes too": (Cores(controller=leaders.CountsTheDead), PARTIAL),
    "the end waits for the last commit": (Cores(controller=leaders.EndsBeforeItsSave), PARTIAL),
    "who comes up after the end is told of it": (Cores(controller=leaders.ForgetsWhoComesLate), RAISED),
    "incarnations are counted over absences": (Cores(controller=leaders.ForgetsEarlierLives), RESIZED),
    "who joins counts all steps": (Cores(controller=leaders.JoinsAtTheBeginning), {**RESIZED, "synchronous": True}),
    "a checkpoint says where those were who left": (Cores(controller=leaders.ForgetsWhoLeft), RESIZED),
    "an heir is followed when the controller is lost": (following(members.FollowsAnyHeir), PARTIAL),
    "an heir is answered in its own view": (members.ANSWERS_IN_ANY_VIEW, ORPHANED_LATE),
    "what an heir said early is kept": (following(members.ForgetsWhatAnHeirSaid), ORPHANED),
}


RARE = {"a dead server's word counts for nothing"}  # one schedule in some hundreds shows it


@pytest.mark.parametrize("rule", [pytest.param(each, marks=[pytest.mark.slow] * (each in RARE)) for each in MUTANTS])
def test_the_simulation_finds_out_when_a_rule_is_taken_away(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Simulation, "PATIENCE", 10_000)
    cores, traits = MUTANTS[rule]
    for seed in range(ENOUGH):
        try:
            Simulation(seed, cores, **traits).run()
        except (AssertionError, LookupError):
            return Simulation(seed, **traits).run()  # it is the rule that is missed, and nothing else
    pytest.fail(f"nobody missed it in {ENOUGH} schedules")
