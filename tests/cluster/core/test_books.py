"""What a controller keeps in mind of members does not grow with how often they died or went back."""

from __future__ import annotations

from holdfast.cluster.core.controller import ControllerCore, Recovery
from holdfast.cluster.core.members import Member, Role, View
from holdfast.cluster.core.messages import GoBack, Loaded, Send
from holdfast.cluster.core.outputs import Output
from holdfast.cluster.core.parity_messages import OutOfReach


class Job:
    """Processes that go on as who they are told to be."""

    def __init__(self) -> None:
        self.controller = ControllerCore(
            View.first(servers=3, workers=2), recovery=Recovery.FULL, synchronous=True, parity=True
        )
        self.lives = list(self.controller.view.members)  # by process, who it is
        self.come_back(Role.SERVER)
        self.come_back(Role.WORKER)

    def come_back(self, role: Role) -> None:
        """The processes of one role are up, as whoever they are in the end."""
        for process, life in enumerate(self.lives):
            if life.role is role:
                self.lives[process] = self._up(life)

    def _up(self, life: Member) -> Member:
        while (called := self._called(life, self.controller.up(life))) is not None:
            life = called
        if life.role is Role.SERVER:
            self.controller.handle(life, Loaded())
        return life

    def _called(self, life: Member, outputs: list[Output]) -> Member | None:
        sends = [each for each in outputs if isinstance(each, Send) and each.to == life]
        return next((each.message.member for each in sends if isinstance(each.message, GoBack)), None)

    def go_back(self) -> None:
        """Rows of a server are lost to parity, and everyone is called back."""
        self.controller.handle(self.controller.view.member(Role.SERVER, 0), OutOfReach(1))


def test_a_controller_forgets_whom_it_called_back_once_they_are_there() -> None:
    job = Job()
    for _ in range(5):
        job.go_back()
        job.come_back(Role.SERVER)
        job.go_back()  # before the workers were up
        job.come_back(Role.SERVER)
        job.come_back(Role.WORKER)
    assert job.controller.is_whole
    assert not job.controller._called_back
