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
_MOST_FAILED_STARTS = 3  # in a row, of one place
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
        self._failed_starts: dict[tuple[Role, int], int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no process is left."""
        return not self._processes

    @property
    def spares(self) -> list[Member]:
        """Those that wait for a place, as they introduce themselves."""
        return [each.member for each in self._processes.values() if isinstance(each.tenant, Spare)]

    def start(self, member: Member) -> None:
        """Start a process for a place."""
        self._begin(member, member)

    def start_spares(self) -> None:
        """Start as many as are wanted and missing."""
        for _ in range(self._wanted_spares - len(self.spares)):
            self._started_spares += 1
            member = Member(Role.SERVER, FIRST_SPARE + self._started_spares, 1)
            self._begin(Spare(Role.SERVER, self._started_spares), member)

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

    def up(self, member: Member) -> None:
        """A process introduced itself."""
        process = self._by_member.get(member)
        if process is not None:
            process.member, process.is_up = member, True

    def known_as(self, member: Member) -> Member:
        """Whose place a spare was given, whether it has heard that or not; anybody else is who it says it is."""
        process = self._by_member.get(member)
        return process.member if process is not None and member.index >= FIRST_SPARE else member

    def settled(self) -> None:
        """Everyone is at work: whoever dies from now on was started well."""
        self._failed_starts.clear()

    def fence(self, member: Member) -> None:
        """Kill whatever is this member, or was told to go on as it and may not have heard that."""
        self._beats.forget(member)
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
        member = process.member
        self._beats.forget(member)
        place = (member.role, member.index)
        if not death.is_return and (not process.is_up or death.exit_code is not None):
            self._failed_starts[place] = self._failed_starts.get(place, 0) + 1
            if self._failed_starts[place] >= _MOST_FAILED_STARTS:
                raise RunError(f"{member} could not be started {_MOST_FAILED_STARTS} times in a row: {death}")
        return member, death

    def _begin(self, tenant: Tenant, member: Member) -> None:
        self._beats.watch(member, grace_s=_START_GRACE_S)
        self._launcher.start(tenant, _TARGETS[tenant.role], self._pack(member))
        process = _Process(tenant, member)
        self._processes[tenant] = process
        self._by_member[member] = process
