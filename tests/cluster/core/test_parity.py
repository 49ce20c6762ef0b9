"""No row is wrong and every push counts once, whichever servers die; and each rule of parity is seen to matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.cluster.core.controller import Recovery
from tests.cluster.core import mutant_parity as mutants
from tests.cluster.core.mutant_parity import protected
from tests.cluster.core.parity_simulation import ParitySimulation
from tests.cluster.core.test_protocol import OF_PARITY
from tests.cluster.core.world import Cores, Ending

SCHEDULES, SCHEDULES_SLOW = 500, 20_000
ENOUGH = 3_000  # schedules in which a broken rule must show


@pytest.mark.parametrize("part", range(4))
def test_no_row_is_wrong_and_every_push_counts_once_whoever_dies(part: int) -> None:
    for seed in range(part, SCHEDULES, 4):
        ParitySimulation(seed).run()


def test_no_message_of_parity_goes_unused() -> None:
    unused = OF_PARITY
    for seed in range(SCHEDULES):
        (simulation := ParitySimulation(seed)).run()
        unused = unused - simulation.network.kinds
        if not unused:
            return
    pytest.fail(f"nobody ever got {unused}")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(4))
def test_no_row_is_wrong_in_very_many_schedules(part: int) -> None:
    for seed in range(SCHEDULES + part, SCHEDULES + SCHEDULES_SLOW, 4):
        ParitySimulation(seed).run()


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
MANY_SAVES = {**PARTIAL, "faults": 12, "saves": 40}
ORPHANED = {**PARTIAL, "ending": Ending.ORPHANS}
IN_STEP = {"parity": 1, "synchronous": True, "resizes": 0, "ending": Ending.DATA, "faults": 8}

MUTANTS: Mapping[str, tuple[Cores, Mapping[str, Any]]] = {
    "1: a push is applied whole": (protected(pace=mutants.AppliesWhatIsThere), PARTIAL),
    "2: what was seen is kept over incarnations": (protected(host=mutants.ForgetsTheDead), PARTIAL),
    "3: a value says what it holds": (protected(rows=mutants.TellsOnlyWhatItApplied), PARTIAL),
    "3: a replacement inherits what rows hold": (protected(rows=mutants.InheritsNothing), PARTIAL),
    "4: a newer incarnation is adopted when it is heard": (protected(parity=mutants.WaitsForViews), PARTIAL),
    "5: answers to an older attempt are dropped": (protected(host=mutants.TakesAnyAnswer), PARTIAL),
    "6: nothing is decoded from a parity that is not whole": (protected(host=mutants.DecodesFromParts), PARTIAL),
    "6: a host without the lost share refuses": (protected(host=mutants.WaitsWithoutTheShare), PARTIAL),
    "7: two lost rows of a stripe are both refused": (protected(host=mutants.WaitsForTheDead), PARTIAL),
    "7: what a dead host was asked for is not waited for": (protected(rows=mutants.WaitsForADeadHost), PARTIAL),
    "7: encoding anew refuses all who wait": (protected(host=mutants.EncodesAnewInSilence), PARTIAL),
    "8: saved rows hold what was saved": (protected(rows=mutants.SkipsForSavedRows), PARTIAL),
    "8: saved rows start anew at their host": (protected(host=mutants.SeesForSavedRows), PARTIAL),
    "9: no row is given before all hosts have the same": (
        protected(agreement=mutants.GivesWhatIsDisputed),
        SEVERAL_HOSTS,
    ),
    "9: hosts keep what is not stable": (protected(agreement=mutants.KeepsNothing), SEVERAL_HOSTS),
    "9: hosts confirm what they were told": (protected(host=mutants.AgreesAtOnce), SEVERAL_HOSTS),
    "9: a value comes with what not all hosts have": (protected(parity=mutants.ListensFromNowOn), SEVERAL_HOSTS),
    "parities of lost rows are encoded anew": (protected(host=mutants.KeepsDeadParities), PARTIAL),
    "a push counts when it is stable": (protected(parity=mutants.CountsUnstable), PARTIAL),
    "a dead host's acknowledgement is not waited for": (protected(stability=mutants.WaitsForDeadHosts), PARTIAL),
    "differences before a value are in it": (protected(host=mutants.AbsorbsBeforeItsValue), PARTIAL),
    "differences after a value are not": (protected(host=mutants.AccumulatesOnce), PARTIAL),
    "a hello is answered when all is stable": (protected(pace=mutants.GreetsAtOnce), MANY_SAVES),
    "a new worker goes on behind what is stable": (protected(pace=mutants.ReportsUnstable), PARTIAL),
    "a push that comes again is answered": (protected(pace=mutants.SkipsInSilence), PARTIAL),
    "rows are whole when they hold no more than was applied": (protected(rows=mutants.IsWholeTooEarly), PARTIAL),
    "loaded rows have no parity yet": (protected(parity=mutants.OwnsOldParities), PARTIAL),
    "no save while rows are missing": (Cores(server=mutants.SurveysWhileItRebuilds), ORPHANED),
    "what was absent is given when it is there": (protected(parity=mutants.AnswersOnce), PARTIAL),
    "a step ends when it is stable": (protected(parity=mutants.CountsUnstable), IN_STEP),
    "a new server hears all workers before it goes on": (protected(pace=mutants.BeginsWithTheFirst), IN_STEP),
    "what a predecessor promised is promised again": (protected(pace=mutants.LeavesPromisesToTheDead), IN_STEP),
    "a new server is settled when a step of it has ended": (protected(pace=mutants.SettlesAtOnce), IN_STEP),
    "a new worker is settled when its predecessor's steps have ended": (
        protected(pace=mutants.AnswersHellosAtOnce),
        IN_STEP,
    ),
    "a worker and a server within a step set everyone back": (Cores(controller=mutants.GoesOnWithoutBoth), IN_STEP),
    "a new server hears whose data have ended": (Cores(worker=mutants.ExhaustedOnce), IN_STEP),
}
RARE = {
    "9: a value comes with what not all hosts have",
    "8: saved rows start anew at their host",
    "3: a value says what it holds",
    "5: answers to an older attempt are dropped",
    "what a predecessor promised is promised again",
    "a new worker is settled when its predecessor's steps have ended",
    "a hello is answered when all is stable",
}  # one schedule in some hundreds shows them


@pytest.mark.parametrize("rule", [pytest.param(each, marks=[pytest.mark.slow] * (each in RARE)) for each in MUTANTS])
def test_the_simulation_finds_out_when_a_rule_is_taken_away(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParitySimulation, "PATIENCE", 20_000)
    cores, traits = MUTANTS[rule]
    for seed in range(ENOUGH):
        try:
            ParitySimulation(seed, cores, **traits).run()
        except (AssertionError, LookupError):
            return ParitySimulation(seed, **traits).run()  # it is the rule that is missed, and nothing else
    pytest.fail(f"nobody missed it in {ENOUGH} schedules")
