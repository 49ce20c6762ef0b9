"""The rules of parity, each with servers that lack it."""

from __future__ import annotations

from holdfast.cluster.core.controller import Recovery
from holdfast.cluster.core.members import Role
from tests.cluster.core import mutant_parity as mutants
from tests.cluster.core.mutant_parity import protected
from tests.cluster.core.parity_simulation import ParitySimulation
from tests.cluster.core.rules import Rule, Rulebook
from tests.cluster.core.world import Cores, Ending

# Jobs in which a rule matters.
PARTIAL = {
    "parity": 1,
    "synchronous": False,
    "recovery": Recovery.PARTIAL,
    "resizes": 0,
    "ending": Ending.DATA,
    "faults": 8,
}
SEVERAL_HOSTS = {**PARTIAL, "parity": 2}
HUNTED = {**SEVERAL_HOSTS, "faults": 14, "hunted": Role.SERVER}
HUNTED_OFTEN = {**HUNTED, "faults": 30, "mercy": 0.5, "saves": 40}
HUNTED_IN_TURN = {**HUNTED, "faults": 30, "mercy": 0.8}
MANY_SAVES = {**PARTIAL, "faults": 12, "saves": 40}
LATE_ANSWERS = {**MANY_SAVES, "slow": Role.SERVER, "hunted": Role.WORKER}
ORPHANED = {**PARTIAL, "ending": Ending.ORPHANS}
PATIENT = {**PARTIAL, "is_patient": True}
PATIENT_HUNTED = {**HUNTED, "is_patient": True}
IN_STEP = {"parity": 1, "synchronous": True, "resizes": 0, "ending": Ending.DATA, "faults": 8}
IN_STEP_LATE = {**IN_STEP, "faults": 30, "hunted": Role.SERVER, "mercy": 0.99}  # servers die until the end
IN_STEP_AGAIN = {**IN_STEP, "faults": 20, "mercy": 0.9}  # most wait until redundancy is whole, some strike before
IN_STEP_SLOW = {**IN_STEP, "faults": 12, "slow": Role.SERVER, "mercy": 0.0}

RULES = {
    "1: a push is applied whole": Rule(protected(pace=mutants.AppliesWhatIsThere), PARTIAL),
    "2: what was seen is kept over incarnations": Rule(protected(host=mutants.ForgetsTheDead), PARTIAL),
    "3: a value says what it holds": Rule(protected(rows=mutants.TellsOnlyWhatItApplied), PARTIAL, is_rare=True),
    "3: a replacement inherits what rows hold": Rule(protected(rows=mutants.InheritsNothing), PARTIAL),
    "4: a newer incarnation is adopted when it is heard": Rule(protected(parity=mutants.WaitsForViews), PARTIAL),
    "6: nothing is decoded from a parity that is not whole": Rule(protected(host=mutants.DecodesFromParts), PARTIAL),
    "6: a host without the lost share refuses": Rule(protected(host=mutants.WaitsWithoutTheShare), PARTIAL),
    "7: two lost rows of a stripe are both refused": Rule(protected(host=mutants.WaitsForTheDead), PARTIAL),
    "7: what a dead host was asked for is not waited for": Rule(protected(rows=mutants.WaitsForADeadHost), PARTIAL),
    "7: encoding anew refuses all who wait": Rule(protected(host=mutants.EncodesAnewInSilence), PARTIAL),
    "8: saved rows hold what was saved": Rule(protected(rows=mutants.SkipsForSavedRows), PARTIAL),
    "8: saved rows start anew at their host": Rule(protected(host=mutants.SeesForSavedRows), PARTIAL, is_rare=True),
    "8: what was kept of a row is not the saved one's": Rule(
        protected(agreement=mutants.KeepsForSavedRows), HUNTED, is_rare=True
    ),
    "8: what was kept of a row does not say what the saved one holds": Rule(
        protected(agreement=mutants.TellsForSavedRows), HUNTED, is_rare=True
    ),
    "8: saved rows wait until hosts have dropped the former": Rule(
        protected(rows=mutants.UsesSavedRowsAtOnce), HUNTED_OFTEN, is_rare=True
    ),
    "9: no row is given before all hosts have the same": Rule(
        protected(agreement=mutants.GivesWhatIsDisputed),
        SEVERAL_HOSTS,
    ),
    "9: hosts keep what is not stable": Rule(protected(agreement=mutants.KeepsNothing), SEVERAL_HOSTS),
    "9: hosts confirm what they were told": Rule(protected(host=mutants.AgreesAtOnce), SEVERAL_HOSTS),
    "9: a value comes with what not all hosts have": Rule(
        protected(parity=mutants.ListensFromNowOn), SEVERAL_HOSTS, is_rare=True
    ),
    "9: what hosts found is of the same lives": Rule(
        protected(rows=mutants.AddsUpOtherLives), HUNTED_IN_TURN, is_rare=True
    ),
    "parities of lost rows are encoded anew": Rule(protected(host=mutants.KeepsDeadParities), PARTIAL),
    "a push counts when it is stable": Rule(protected(parity=mutants.CountsUnstable), PARTIAL),
    "hosts are told of what a value holds before it is given": Rule(
        protected(parity=mutants.GivesWhatIsUntold), PARTIAL
    ),
    "a push that hosts were not told of is not stable": Rule(protected(stability=mutants.CountsUntold), PARTIAL),
    "a dead host's acknowledgement is not waited for": Rule(protected(stability=mutants.WaitsForDeadHosts), PARTIAL),
    "differences before a value are in it": Rule(protected(host=mutants.AbsorbsBeforeItsValue), PARTIAL),
    "differences after a value are not": Rule(protected(host=mutants.AccumulatesOnce), PARTIAL),
    "a hello is answered when all is stable": Rule(protected(pace=mutants.GreetsAtOnce), LATE_ANSWERS),
    "a new worker goes on behind what is stable": Rule(protected(pace=mutants.ReportsUnstable), PARTIAL),
    "a push that comes again is answered": Rule(protected(pace=mutants.SkipsInSilence), PARTIAL),
    "rows are whole when they hold no more than was applied": Rule(protected(rows=mutants.IsWholeTooEarly), PARTIAL),
    "hosts may have a predecessor's loaded rows": Rule(protected(parity=mutants.SpeaksWhenAsked), PARTIAL),
    "no save while rows are missing": Rule(Cores(server=mutants.SurveysWhileItRebuilds), ORPHANED),
    "redundancy is whole when dropped parities are": Rule(Cores(controller=mutants.BelievesEachAlone), PARTIAL),
    "redundancy is whole when rows are there": Rule(protected(parity=mutants.TellsOnlyOfParities), PARTIAL),
    "parities are encoded that nobody waits for": Rule(protected(host=mutants.EncodesNothing), PATIENT),
    "parities of dead hosts are encoded anew": Rule(protected(host=mutants.EncodesOnce), PATIENT),
    "servers say that all is whole": Rule(protected(parity=mutants.TellsNobody), PATIENT),
    "servers say again in each view that all is whole": Rule(protected(parity=mutants.TellsOnce), PATIENT),
    "sums are kept no longer than they are needed": Rule(protected(rows=mutants.KeepsSums), PATIENT_HUNTED),
    "what was absent is given when it is there": Rule(protected(parity=mutants.AnswersOnce), PARTIAL),
    "a step ends when it is stable": Rule(protected(parity=mutants.CountsUnstable), IN_STEP),
    "a new server hears all workers before it goes on": Rule(protected(pace=mutants.BeginsWithTheFirst), IN_STEP),
    "what a predecessor promised is promised again": Rule(
        protected(pace=mutants.LeavesPromisesToTheDead), IN_STEP, is_rare=True
    ),
    "a new server is settled when a step of it has ended": Rule(protected(pace=mutants.SettlesAtOnce), IN_STEP_AGAIN),
    "a new worker is settled when its predecessor's steps have ended": Rule(
        protected(pace=mutants.AnswersHellosAtOnce), IN_STEP_SLOW, is_rare=True
    ),
    "a new server counts the steps before it": Rule(protected(pace=mutants.CountsItsOwnSteps), IN_STEP_LATE),
    "a worker and a server within a step set everyone back": Rule(Cores(controller=mutants.GoesOnWithoutBoth), IN_STEP),
    "a new server hears whose data have ended": Rule(Cores(worker=mutants.ExhaustedOnce), IN_STEP),
}

PARITY = Rulebook(simulation=ParitySimulation, rules=RULES, enough=3_000, patience=20_000)
