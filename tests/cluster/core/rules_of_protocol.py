"""The rules of the protocol, each with members that lack it."""

from __future__ import annotations

from holdfast.cluster.core.controller import Recovery
from holdfast.cluster.core.members import Role
from tests.cluster.core import mutant_leaders as leaders
from tests.cluster.core import mutant_members as members
from tests.cluster.core import mutant_servers as servers
from tests.cluster.core.mutant_members import following
from tests.cluster.core.mutant_servers import paced
from tests.cluster.core.rules import Rule, Rulebook
from tests.cluster.core.simulation import Simulation
from tests.cluster.core.world import Cores, Ending

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

RULES = {
    "a push is applied once": Rule(paced(servers.AppliesAgain), PARTIAL),
    "messages of older incarnations are dropped": Rule(Cores(server=servers.HearsTheDead), PARTIAL),
    "what loaded rows hold is not applied again": Rule(Cores(server=servers.ForgetsWhatRowsHold), PARTIAL),
    "a new server answers when its rows are there": Rule(Cores(server=servers.AnswersBeforeItsRows), PARTIAL),
    "rows saved between checkpoints say what they hold": Rule(Cores(server=servers.SavesWithoutProgress), PARTIAL),
    "a copy of the dense part does not undo pushes": Rule(Cores(server=servers.TakesEveryCopy), PARTIAL),
    "what is not applied is sent again": Rule(Cores(worker=members.DoesNotSendAgain), PARTIAL),
    "what is not answered is asked again": Rule(Cores(worker=members.PullsOnce), PARTIAL),
    "a dead server's word counts for nothing": Rule(
        Cores(worker=members.BelievesTheDead), {**PARTIAL, "faults": 12, "saves": 40}, is_rare=True
    ),
    "a worker pauses when everything is applied": Rule(Cores(worker=members.PausesAtOnce), PARTIAL),
    "a worker makes up for its predecessor before it pauses": Rule(Cores(worker=members.OwesNothing), PARTIAL),
    "a view ends a pause": Rule(Cores(worker=members.PausesForEver), PARTIAL),
    "a new worker goes on behind what all have applied": Rule(Cores(controller=leaders.TakesTheMost), PARTIAL),
    "a server that died with a worker counts as far as it was known to be": Rule(
        Cores(controller=leaders.ForgetsNewServers),
        PARTIAL,
    ),
    "a death ends a save": Rule(Cores(controller=leaders.SavesThroughDeaths), PARTIAL),
    "a save waits until everyone is at work": Rule(Cores(controller=leaders.SavesWhileSomebodyIsMissing), PARTIAL),
    "everyone is told of a death": Rule(Cores(controller=leaders.KeepsViewsToItself), PARTIAL),
    "a gap ends a stream": Rule(Cores(incoming=members.OverlooksGaps), PARTIAL),
    "a gap is told": Rule(following(members.KeepsGapsToItself), PARTIAL),
    "whoever misses an order is replaced": Rule(following(members.MissesOrders), PARTIAL),
    "a step is applied when all servers hold it": Rule(paced(servers.AppliesOnItsOwn), IN_STEP),
    "what is not promised of a dead worker is given up": Rule(paced(servers.KeepsWhatIsNotPromised), IN_STEP),
    "what is promised is kept": Rule(paced(servers.BreaksItsPromise), IN_STEP),
    "a promise is repeated to a server that is new": Rule(paced(servers.PromisesOnce), IN_STEP_LATE),
    "rows are those after exactly so many steps": Rule(paced(servers.AnswersAtOnce), IN_STEP),
    "gradients are averaged in the order of workers": Rule(paced(servers.AppliesAsItComes), IN_STEP),
    "servers copy when the last step is applied": Rule(paced(servers.CopiesTooEarly), IN_STEP_UNHARMED),
    "nobody pauses a step behind the others": Rule(Cores(controller=leaders.LetsThemPauseApart), IN_STEP_UNHARMED),
    "steps go on without whose data have ended": Rule(Cores(worker=members.EndsInSilence), IN_STEP_UNHARMED),
    "whose data have ended counts the others' steps": Rule(Cores(worker=members.FallsBehind), IN_STEP_UNHARMED),
    "a server's death sets everyone back": Rule(Cores(controller=leaders.GoesOnInPart), IN_STEP),
    "who dies before it went back is replaced": Rule(Cores(controller=leaders.LosesTheCalledBack), FULL),
    "workers start when all servers went back": Rule(Cores(controller=leaders.StartsEarly), FULL),
    "a checkpoint is what is committed": Rule(Cores(controller=leaders.GoesBackToCopies), FULL),
    "workers go on when a save fails": Rule(Cores(controller=leaders.LetsThemWait), TIGHT),
    "whoever takes a finished worker's place finishes too": Rule(Cores(controller=leaders.CountsTheDead), PARTIAL),
    "the end waits for the last commit": Rule(Cores(controller=leaders.EndsBeforeItsSave), PARTIAL),
    "who comes up after the end is told of it": Rule(Cores(controller=leaders.ForgetsWhoComesLate), RAISED),
    "incarnations are counted over absences": Rule(Cores(controller=leaders.ForgetsEarlierLives), RESIZED),
    "who joins counts all steps": Rule(Cores(controller=leaders.JoinsAtTheBeginning), {**RESIZED, "synchronous": True}),
    "a checkpoint says where those were who left": Rule(Cores(controller=leaders.ForgetsWhoLeft), RESIZED),
    "an heir is followed when the controller is lost": Rule(following(members.FollowsAnyHeir), PARTIAL),
    "an heir is answered in its own view": Rule(members.ANSWERS_IN_ANY_VIEW, ORPHANED_LATE),
    "what an heir said early is kept": Rule(following(members.ForgetsWhatAnHeirSaid), ORPHANED),
}

PROTOCOL = Rulebook(simulation=Simulation, rules=RULES, enough=1_500, patience=10_000)
