"""Which process is which member: they are started and watched, take others' places, go on as the next incarnation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.launch.base import Death, Launcher, Spare, Tenant
from holdfast.cluster.wire.beats import Beats
from holdfast.errors import RunError

FIRST_SPARE = 1 << 30  # spares have indices from here on: places of no server
_TARGETS = {Role.SERVER: "holdfast.cluster.server.process:run", Role.WORKER: "holdfast.cluster.worker.process:run"}
_START_GRACE_S = 120.0  # that a process may take to import what it needs, on a busy machine
_NEXT_LIFE_GRACE_S = 10.0  # that a process may take to close one life's sockets and open the next one's


@dataclass(slots=True)
class _Process:
    tenant: Tenant
    member: Member  # the last that it was known to be
    is_up: bool = False

    def was(self, life: Member) -> bool:
        """Whether it has gone on from this life of it, and no order for that one concerns it any more."""
        now = self.member
        return (now.role, now.index) != (life.role, life.index) or now.incarnation > life.incarnation


@dataclass(frozen=True, slots=True)
class _Start:
    member: Member
    due_s: float


class Crew:
    """The processes of a job.

    Args:
        launcher: Starts and kills them.
        beats: Hears their heartbeats.
        pack: What a process is told that is to be this member.
        spares: How many servers shall wait for a place.
    """

    def __init__(self, launcher: Launcher, beats: Beats, pack: Callable[[Member], bytes], *, spares: int) -> None:
        self._launcher = launcher
        self._beats = beats
        self._pack = pack
        self._wanted_spares = spares
        self._started_spares = 0  # ever
        self._processes: dict[Tenant, _Process] = {}
        self._by_member: dict[Member, _Process] = {}
        self._starts: dict[Tenant, _Start] = {}  # that are to come

    @property
    def is_empty(self) -> bool:
        """Whether no process is left."""
        return not self._processes

    @property
    def spares(self) -> list[Member]:
        """Those that wait for a place, as they introduce themselves."""
        return [each.member for each in self._processes.values() if isinstance(each.tenant, Spare)]

    @property
    def missing_spares(self) -> list[Member]:
        """As whom those would introduce themselves that are wanted, and neither there nor about to be started."""
        taken = {each.index for each in (*self.spares, *(start.member for start in self._starts.values()))}
        free = [FIRST_SPARE + number for number in range(self._wanted_spares) if FIRST_SPARE + number not in taken]
        return [Member(Role.SERVER, index, self._started_spares + life) for life, index in enumerate(free, start=1)]

    def start(self, member: Member, due_s: float) -> None:
        """A process for a place, or a spare, is to be started at this time."""
        tenant: Tenant = member
        if member.index >= FIRST_SPARE:
            self._started_spares = max(self._started_spares, member.incarnation)
            tenant = Spare(Role.SERVER, member.incarnation)
        self._starts[tenant] = _Start(member, due_s)

    def start_due(self, now_s: float) -> list[tuple[Member, str]]:
        """Start whoever is due; those that could not be started, and why."""
        failed = []
        for tenant, start in [each for each in self._starts.items() if each[1].due_s <= now_s]:
            del self._starts[tenant]
            try:
                self._begin(tenant, start.member)
            except RunError as error:
                failed.append((start.member, str(error)))
        return failed

    def place_spare(self, member: Member) -> Member | None:
        """Give a server's place to a spare that waits; as whom it is known until then."""
        for process in list(self._processes.values()):
            if member.role is Role.SERVER and isinstance(process.tenant, Spare) and process.is_up:
                spare = process.member
                self._launcher.adopt(process.tenant, member)
                del self._processes[process.tenant]
                process.tenant = process.member = member
                self._processes[member] = process
                self.goes_back(spare, member)
                return spare
        return None

    def goes_back(self, member: Member, next_life: Member) -> None:
        """A process was told to go on as its next incarnation."""
        self._beats.goes_on(member, next_life, grace_s=_NEXT_LIFE_GRACE_S)
        process = self._by_member.get(member)
        if process is not None:
            self._by_member[next_life] = process

    def up(self, member: Member) -> list[Member]:
        """A process introduced itself; who it was until now: whatever was sent there has been heard."""
        process = self._by_member.get(member)
        if process is None:
            return []
        process.member, process.is_up = member, True
        former = [each for each, known in self._by_member.items() if known is process and process.was(each)]
        for each in former:
            del self._by_member[each]
            self._beats.forget(each)
        return former

    def known_as(self, member: Member) -> Member:
        """Whose place a spare was given, whether it has heard that or not; anybody else is who it says it is."""
        process = self._by_member.get(member)
        return process.member if process is not None and member.index >= FIRST_SPARE else member

    def fence(self, member: Member) -> None:
        """Kill whatever is this member, or was told to go on as it and may not have heard that."""
        self._beats.forget(member)
        self._starts.pop(member, None)
        process = self._by_member.get(member)
        if process is not None and not process.was(member):
            self._launcher.kill(process.tenant)

    def silent(self) -> list[Member]:
        """Whose heartbeats have not been heard for too long."""
        return self._beats.overdue()

    def bury(self) -> list[tuple[Member, Death]]:
        """Who died since the last call, as the last member that each was."""
        return [self._bury(death) for death in self._launcher.deaths()]

    def _bury(self, death: Death) -> tuple[Member, Death]:
        process = self._processes.pop(death.tenant)
        self._by_member = {member: each for member, each in self._by_member.items() if each is not process}
        self._beats.forget(process.member)
        return process.member, death

    def _begin(self, tenant: Tenant, member: Member) -> None:
        self._beats.watch(member, grace_s=_START_GRACE_S)
        try:
            self._launcher.start(tenant, _TARGETS[tenant.role], self._pack(member))
        except RunError:
            self._beats.forget(member)
            raise
        process = _Process(tenant, member)
        self._processes[tenant] = process
        self._by_member[member] = process
