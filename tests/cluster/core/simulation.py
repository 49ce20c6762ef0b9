"""A job of state machines on a network that is slow, cut and full of the dead, all of it from a seed.

Processes are killed, stopped and woken; views arrive at different times; frames get lost, and streams are as slow as
they like. The simulation stops at the first promise that is broken, and says which.
"""

from __future__ import annotations

from typing import Any

from holdfast.cluster.core.members import CONTROLLER, Member, Role
from holdfast.cluster.core.messages import Failed, Send
from tests.cluster.core.model import BrokenPromise, gradient
from tests.cluster.core.promises import Promises
from tests.cluster.core.world import MOST_WORKERS, Cores, Ending, Process


class Simulation(Promises):
    """One schedule."""

    ORPHANS_PATIENCE = 100  # looks at the clock

    def __init__(self, seed: int, cores: Cores = Cores(), **traits: Any) -> None:  # noqa: B008 - frozen
        super().__init__(seed, cores, **traits)
        self.faults, self.saves, self.resizes = self.traits.faults, self.traits.saves, self.traits.resizes
        self.time_left = 0 if self.traits.ending is Ending.DATA else self.chance.randint(50, 1500)
        self.orphaned_for = 0

    def run(self) -> None:
        """To the end of the training, or to the first broken promise."""
        for _ in range(self.PATIENCE):
            if self.ended is not None or (not self.is_controller_alive and not self._running()):
                break
            self._happen()
        else:
            raise BrokenPromise(f"nothing moves any more: {self._state()}")
        self._check_end()

    def _happen(self) -> None:
        dice = self.chance.random()
        if self.time_left:
            self.time_left -= 1
            if self.time_left == 0:
                self._come_to_an_end()
        if not self.is_controller_alive and dice < 0.06:
            self._look_at_the_clock()
        elif self.faults and dice < 0.02:
            self.faults -= 1
            self._break_something()
        elif dice < 0.06 and (self.saves or self.resizes) and self.is_controller_alive:
            self._save_something()
        elif self.starting and dice < 0.10:
            member = self.starting.pop(self.chance.randrange(len(self.starting)))
            if self.is_controller_alive:
                self._lead(self.controller, self.controller.up(member))
        elif self.unheard and dice < 0.15:
            member = self.unheard.pop(self.chance.randrange(len(self.unheard)))
            if self.is_controller_alive:
                self._lead(self.controller, self.controller.died(member))
        elif dice < 0.18:
            self._wake()
        elif self.commits and dice < 0.24:
            self._commit()
        elif dice < 0.48:
            self._train()
        else:
            self._deliver()

    # ---- faults ----------------------------------------------------------------------------------------------------

    def _break_something(self) -> None:
        self.must_save = False
        faults = (self._kill, self._kill, self._stop, self._stop, self.network.cut, self._cut_off)
        self.chance.choice(faults)()

    def _hunted(self) -> list[Process]:
        return self._running(*([self.traits.hunted] if self.traits.hunted else []))

    def _kill(self) -> None:
        if running := self._hunted():
            self._end(self.chance.choice(running))

    def _stop(self) -> None:
        """It is stopped, or cannot be reached, and is given up for dead."""
        if running := self._hunted():
            process = self.chance.choice(running)
            process.stopped = True
            self.unheard.append(process.member)

    def _cut_off(self) -> None:
        """A server cannot reach the controller; if it is server 0, it believes that it is the heir."""
        if servers := [each for each in self._running(Role.SERVER) if not each.core.is_orphan]:
            process = self.chance.choice(servers)
            self.unheard.append(process.member)
            self._orphan(process)

    def _report_gap(self, sender: Member, receiver: Member) -> None:
        self.must_save = False
        super()._report_gap(sender, receiver)

    def _wake(self) -> None:
        if stopped := [each for each in self.processes.values() if each.alive and each.stopped]:
            self.chance.choice(stopped).stopped = False
        self.is_full = self.is_full and self.chance.random() < 0.9
        if self.is_controller_alive and self.heirs and self.chance.random() < 0.1:
            heir = self.chance.choice(list(self.heirs.values()))
            self._lead(heir, heir.end("nobody follows"))

    # ---- saves and ends --------------------------------------------------------------------------------------------

    def _save_something(self) -> None:
        dice = self.chance.random()
        if self.resizes and dice < 0.2:
            self.resizes -= 1
            self._lead(self.controller, self.controller.resize(self.chance.randint(1, MOST_WORKERS)))
        elif self.saves:
            self.saves -= 1
            if self.traits.tight and self.chance.random() < 0.3:
                self.is_full = self.is_store_ever_full = True
            self._lead(self.controller, self.controller.save() if dice < 0.6 else self.controller.save_priority())

    def _come_to_an_end(self) -> None:
        workers = [each for each in self._running(Role.WORKER) if self.controller.view.holds(each.member)]
        match self.traits.ending:
            case Ending.STOP:
                self._lead(self.controller, self.controller.stop())
            case Ending.FAILURE if workers:
                self.network.send(self.chance.choice(workers).member, [Send(CONTROLLER, Failed("it raised"))])
                self.time_left = 300  # the worker may die as well, or what it says is lost
            case Ending.ORPHANS:
                self.must_save = self._is_well()
                self.is_controller_alive = False
                self.network.lose_last_words(CONTROLLER)
                self.commits = [each for each in self.commits if each[0] is not self.controller]

    def _is_well(self) -> bool:
        """Whether everyone is at work, and knows it.

        A gap between two of them, of which the controller dies before it hears, is nobody's to mend any more.
        """
        view = self.controller.view
        members = [self.processes[each] for each in view.members if each in self.processes]
        is_known = all(each.runs and each.core.view == view and not each.core.is_orphan for each in members)
        is_broken = self.network.is_broken(view.holds)
        return self.controller.is_whole and is_known and not is_broken and not self.is_full

    def _look_at_the_clock(self) -> None:
        if parents := [each for each in self._running() if not each.core.is_orphan]:
            self._orphan(self.chance.choice(parents))
            return
        self.orphaned_for += 1
        if self.orphaned_for > self.ORPHANS_PATIENCE:
            for process in self._running():
                process.core.ended = True

    def _orphan(self, process: Process) -> None:
        member, core = process.member, process.core
        self.network.send(member, core.controller_lost())
        if member.role is Role.SERVER and core.is_heir:
            modes: dict[str, Any] = {"synchronous": self.traits.synchronous, "last_save": core.last_save}
            heir = self.cores.heir(core.view, **modes, progress=core.progress)
            self.heirs[member] = heir
            self._lead(heir, heir.stop())

    # ---- the training ----------------------------------------------------------------------------------------------

    def _train(self) -> None:
        workers = [each for each in self._running(Role.WORKER) if each.core.view is not None and not each.core.finished]
        if not workers:
            return
        process = self.chance.choice(workers)
        core, member = process.core, process.member
        place = self._check_place(core)
        left = self.lengths[member.index] - place
        if left <= 0:
            self.network.send(member, core.finish() if self._may_finish() else [])
        elif len(process.pulls) < min(left, self._pulls_ahead) and core.may_pull:
            pulls = self._pulls(process, place + len(process.pulls))
            process.pulls.append(core.pulled + 1)
            self.network.send(member, core.pull(pulls))
        elif process.pulls and process.values is None:
            if (answers := core.taken(process.pulls[0])) is not None:
                process.values = tuple(answers[index] for index in range(len(self.storage)))
        elif process.values is not None and core.may_push:
            self.network.send(member, core.push(self._gradients(process, place), place=place + 1))
            process.values = None
            process.pulls.popleft()

    def _may_finish(self) -> bool:
        """Whether a worker whose data have ended may say so."""
        return True

    @property
    def _pulls_ahead(self) -> int:
        return 1 if self.traits.synchronous else self.CREDITS.pulls

    def _pulls(self, process: Process, place: int) -> list[Any]:
        """What each server is asked for, for the batch in this place."""
        return list(range(len(self.storage)))

    def _gradients(self, process: Process, place: int) -> list[Any]:
        worker = process.member.index
        if self.traits.synchronous:
            return [gradient(worker, place, process.values or ())] * len(self.storage)
        return [(worker, place + 1)] * len(self.storage)
