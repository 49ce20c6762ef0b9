"""What a controller, or its heir, says and asks for: one job at a time, message by message."""

from __future__ import annotations

from typing import cast

import pytest

from holdfast.cluster.core.controller import ControllerCore, Recovery
from holdfast.cluster.core.leader import Leader
from holdfast.cluster.core.members import CONTROLLER, Member, Role, View
from holdfast.cluster.core.messages import (
    Applied,
    Broken,
    CallOff,
    Copied,
    End,
    Failed,
    Finished,
    GoBack,
    GoOn,
    Hello,
    Load,
    Loaded,
    Lost,
    NewView,
    Pause,
    Paused,
    SavePriority,
    Send,
    Snapshot,
    Start,
    Survey,
    Surveyed,
)
from holdfast.cluster.core.outputs import (
    CalledOff,
    Ended,
    Loss,
    Output,
    PrioritySaved,
    Ready,
    Resized,
    ResizeFailed,
    Saved,
    WentBack,
)
from holdfast.cluster.core.pace import Shard
from holdfast.cluster.core.parity_messages import Hurry, Rebuild
from holdfast.cluster.core.progress import BEGINNING, Progress, SavedProgress
from holdfast.cluster.core.server import ServerCore
from holdfast.cluster.core.worker import WorkerCore

SERVER, WORKER, OTHER = Member(Role.SERVER, 0, 1), Member(Role.WORKER, 0, 1), Member(Role.WORKER, 1, 1)
PLACE = Progress(3, b"place")


def at_work(*, servers: int = 1, workers: int = 2, **modes: object) -> ControllerCore:
    """A job that trains."""
    core = ControllerCore(View.first(servers=servers, workers=workers), **modes)  # type: ignore[arg-type]
    for member in core.view.members:
        core.up(member)
    for index in range(servers):
        core.handle(Member(Role.SERVER, index, 1), Loaded())
    return core


def ready(core: Leader, *, save: int = 1) -> list[Output]:
    """Everyone answers the beginning of a save."""
    core.handle(SERVER, Surveyed(save, b"rows"))
    core.handle(WORKER, Paused(save, PLACE, b"loss"))
    return core.handle(OTHER, Paused(save, PLACE, b"more"))


def sent(outputs: list[Output], kind: type) -> list[Member]:
    """To whom such a message goes."""
    return [each.to for each in outputs if isinstance(each, Send) and isinstance(each.message, kind)]


def test_workers_start_where_the_job_is_resumed_once_servers_have_loaded() -> None:
    core = ControllerCore(View.first(servers=1, workers=1), progress={0: PLACE})
    assert core.up(WORKER) == []
    assert core.up(SERVER) == [Send(SERVER, Load(core.view, 0, {0: PLACE}))]
    assert core.handle(SERVER, Loaded()) == [Send(WORKER, Start(core.view, PLACE))]


def test_a_save_asks_for_its_kind_when_everyone_has_said_what_there_is() -> None:
    core = at_work()
    begun = core.save()
    assert sent(begun, Pause) == [WORKER, OTHER] and sent(begun, Survey) == [SERVER]
    (asked,) = ready(core)
    progress = {0: PLACE, 1: PLACE}
    assert asked == Ready(save=1, progress=progress, reports={0: b"loss", 1: b"more"}, surveys={0: b"rows"})
    assert core.snapshot(b"intent") == [Send(SERVER, Snapshot(1, progress, b"intent"))]
    assert core.snapshot(b"again") == []
    saved, *going_on = core.handle(SERVER, Copied(1, report=b"counts"))
    assert saved == Saved(save=1, progress=progress, reports={0: b"counts"})
    assert sent(going_on, GoOn) == [WORKER, OTHER]


def test_a_save_that_cannot_be_copied_is_called_off_and_the_training_goes_on() -> None:
    core = at_work()
    core.save()
    ready(core)
    core.snapshot(b"")
    outputs = core.handle(SERVER, Copied(1, "no space left"))
    assert outputs[0] == CalledOff(1, f"{SERVER}: no space left")
    assert sent(outputs, CallOff) == [SERVER] and sent(outputs, GoOn) == [WORKER, OTHER]
    assert not core.is_saving and not core.ended and core.save()


def test_a_save_that_cannot_be_committed_counts_as_not_saved() -> None:
    core = at_work(recovery=Recovery.FULL)
    core.save()
    ready(core)
    core.snapshot(b"")
    core.handle(SERVER, Copied(1))
    assert sent(core.call_off(1, "no space left"), CallOff) == [SERVER]
    assert core.committed(1) == []
    assert WentBack(0) in core.died(SERVER)


def test_the_job_ends_behind_a_last_save_when_all_data_have_ended() -> None:
    core = at_work()
    assert core.handle(WORKER, Finished()) == []
    assert sent(core.handle(OTHER, Finished()), Pause) == [WORKER, OTHER]
    ready(core)
    core.snapshot(b"")
    assert sent(core.handle(SERVER, Copied(1)), GoOn) == []
    ended = core.committed(1)
    assert sent(ended, End) == [SERVER, WORKER, OTHER] and ended[-1] == Ended("")


def test_a_last_save_is_tried_once_more_before_the_job_ends_with_its_problem() -> None:
    core = at_work()
    core.stop()
    ready(core)
    core.snapshot(b"")
    again = core.handle(SERVER, Copied(1, "no space left"))
    assert not core.ended and sent(again, Pause) == [WORKER, OTHER]
    ready(core, save=2)
    core.snapshot(b"")
    assert core.handle(SERVER, Copied(2, "no space left"))[-1] == Ended(f"{SERVER}: no space left")


def test_what_a_worker_raises_ends_the_job_at_once() -> None:
    core = at_work()
    outputs = core.handle(WORKER, Failed("ValueError: no"))
    assert sent(outputs, End) == [SERVER, WORKER, OTHER] and outputs[-1] == Ended(f"{WORKER}: ValueError: no")
    assert core.up(Member(Role.WORKER, 1, 1)) == [Send(OTHER, End())]


@pytest.mark.parametrize("modes", [{"recovery": Recovery.FULL}, {"synchronous": True}])
def test_everyone_goes_back_to_the_last_checkpoint_when_a_server_dies(modes: dict[str, object]) -> None:
    core = at_work(**modes)
    core.save()
    ready(core)
    core.snapshot(b"")
    core.handle(SERVER, Copied(1))
    core.committed(1)
    outputs = core.died(SERVER)
    assert WentBack(1) in outputs and sent(outputs, GoBack) == [WORKER, OTHER]
    new_server, new_worker = core.view.member(Role.SERVER, 0), core.view.member(Role.WORKER, 0)
    assert core.up(new_worker) == []
    assert core.up(new_server) == [Send(new_server, Load(core.view, 1, {0: PLACE, 1: PLACE}))]
    assert core.handle(new_server, Loaded()) == [Send(new_worker, Start(core.view, PLACE))]


def test_the_number_of_workers_changes_behind_a_save() -> None:
    core = at_work()
    assert sent(core.resize(1), Pause) == [WORKER, OTHER]
    ready(core)
    core.snapshot(b"")
    core.handle(SERVER, Copied(1))
    outputs = core.committed(1)
    assert outputs[0] == Resized(1, 1)
    assert sent(outputs, End) == [OTHER] and sent(outputs, GoBack) == [SERVER, WORKER]
    assert core.view.workers == (2,) and not core.view.holds(OTHER)


def test_every_checkpoint_says_how_far_workers_came_that_have_left() -> None:
    core = at_work(progress={0: PLACE, 1: PLACE, 2: Progress(7, "far")})
    core.save()
    [taken] = ready(core)
    assert taken.progress == {0: PLACE, 1: PLACE, 2: Progress(7, "far")}
    heir = Leader(core.view, progress={0: PLACE, 2: Progress(7, "far")})
    heir.stop()
    [taken] = ready(heir)
    assert taken.progress == {0: PLACE, 1: PLACE, 2: Progress(7, "far")}


def test_the_number_of_workers_stays_where_its_save_fails() -> None:
    core = at_work()
    core.resize(3)
    ready(core)
    core.snapshot(b"")
    core.handle(SERVER, Copied(1))
    outputs = core.call_off(1, "no space left")
    assert sent(outputs, GoOn) == [WORKER, OTHER] and outputs[-1] == ResizeFailed(3, "no space left")
    assert len(core.view.workers) == 2 and not core.wants_to_leave


def test_a_priority_save_pauses_nobody() -> None:
    core = at_work()
    assert core.save_priority() == [Send(SERVER, SavePriority(1))]
    assert core.handle(SERVER, Copied(1, report=b"rows")) == [PrioritySaved(SERVER, 1, "", b"rows")]


def test_an_heir_saves_once_and_ends_the_job() -> None:
    heir = Leader(View.first(servers=1, workers=2), last_save=4)
    assert sent(heir.stop(), Pause) == [WORKER, OTHER]
    ready(heir, save=5)
    heir.snapshot(b"")
    heir.handle(SERVER, Copied(5))
    assert heir.committed(5)[-1] == Ended("")


def test_an_heir_ends_the_job_as_it_is_when_somebody_is_missing() -> None:
    heir = Leader(View.first(servers=1, workers=2))
    heir.stop()
    outputs = heir.handle(WORKER, Broken(OTHER))
    assert sent(outputs, End) == [SERVER, WORKER, OTHER] and str(OTHER) in str(outputs[-1])


def test_an_heir_does_not_end_the_job_for_what_it_misses_of_a_controller_that_it_has_lost() -> None:
    heir = Leader(View.first(servers=1, workers=2))
    heir.stop()
    assert heir.handle(SERVER, Broken(CONTROLLER)) == [] and not heir.ended


@pytest.mark.parametrize("core", [ServerCore(SERVER, cast(Shard, None)), WorkerCore(OTHER)], ids=["server", "worker"])
def test_a_member_tells_of_frames_that_it_misses_before_and_after_it_has_a_view(core: ServerCore | WorkerCore) -> None:
    assert core.handle(core.member, Broken(WORKER)) == [Send(CONTROLLER, Broken(WORKER))]
    assert not core.ended and not core.is_adrift
    core.handle(CONTROLLER, NewView(View.first(servers=1, workers=2)))
    assert core.handle(core.member, Broken(SERVER)) == [Send(CONTROLLER, Broken(SERVER))]


def test_a_worker_tells_of_a_server_even_if_it_has_a_higher_number_than_any_server() -> None:
    core = WorkerCore(OTHER)
    core.handle(CONTROLLER, Start(View.first(servers=1, workers=2), BEGINNING))
    assert core.handle(OTHER, Broken(SERVER)) == [Send(CONTROLLER, Broken(SERVER))]


def test_a_member_that_misses_frames_of_the_controller_ends_and_waits_to_be_replaced() -> None:
    core, controller = WorkerCore(OTHER), at_work()
    core.handle(CONTROLLER, Start(controller.view, BEGINNING))
    (told,) = core.handle(OTHER, Broken(CONTROLLER))
    assert core.ended and core.is_adrift and told == Send(CONTROLLER, Broken(CONTROLLER))
    assert isinstance(told.message, Broken)
    controller.died(told.message.to_replace(OTHER))
    assert controller.view.replaces(OTHER) and controller.died(CONTROLLER) == []


def test_a_member_that_is_called_back_and_misses_that_is_replaced() -> None:
    core = at_work(recovery=Recovery.FULL)
    core.died(SERVER)
    core.died(Broken(CONTROLLER).to_replace(OTHER))
    assert core.view.workers == (2, 3)


def test_an_orphan_follows_its_heir_whatever_it_misses_of_the_controller() -> None:
    core = WorkerCore(OTHER)
    core.handle(CONTROLLER, Start(View.first(servers=1, workers=2), BEGINNING))
    core.controller_lost()
    assert core.handle(OTHER, Broken(CONTROLLER)) == [] and not core.ended
    assert core.handle(OTHER, Broken(WORKER)) == [Send(SERVER, Broken(WORKER))]


def test_an_heir_is_not_answered_where_another_view_is_known() -> None:
    view = View.first(servers=2, workers=1)
    core = WorkerCore(WORKER)
    core.handle(CONTROLLER, Start(view.replacing(Member(Role.SERVER, 1, 1)), BEGINNING))
    core.handle(SERVER, Applied(0))
    core.handle(Member(Role.SERVER, 1, 2), Applied(0))
    core.controller_lost()
    assert core.handle(SERVER, Pause(1, view.number)) == []
    assert sent([*core.handle(SERVER, Pause(1, view.number + 1))], Paused) == [SERVER]


def test_a_dead_servers_word_counts_for_nothing() -> None:
    core, view = WorkerCore(WORKER), View.first(servers=1, workers=1)
    core.handle(CONTROLLER, Start(view, BEGINNING))
    core.handle(SERVER, Applied(0))
    (push,) = core.push(["gradients"], b"1")
    core.handle(CONTROLLER, NewView(view.replacing(SERVER)))
    core.handle(CONTROLLER, Pause(1, 2))
    new = Member(Role.SERVER, 0, 2)
    core.handle(new, Applied(0))
    assert core.handle(SERVER, Applied(1)) == []
    assert [each.message.save for each in core.handle(new, Applied(push.message.number))] == [1]


class Rows:
    """A shard whose rows hold a worker's first two pushes, by a checkpoint, and some of them the third and fourth."""

    def load(self, checkpoint: int | None) -> SavedProgress:
        return SavedProgress({0: Progress(4, b"4")}, {0: Progress(2, b"2")})


@pytest.mark.parametrize(("known", "applied", "lost"), [(5, 5, 3), (4, 4, 2), (3, 4, 2), (2, 4, 2)])
def test_a_new_server_says_what_its_rows_lack_since_the_checkpoint(known: int, applied: int, lost: int) -> None:
    """What the priority save holds does not come again: so rows lack it that are not in that save."""
    core, view = ServerCore(SERVER, cast(Shard, Rows())), View.first(servers=1, workers=1)
    core.handle(CONTROLLER, Load(view, None, {}))
    sends = core.handle(WORKER, Hello(Progress(known, b"?"), BEGINNING))
    assert sends == [Send(CONTROLLER, Lost(0, lost)), Send(WORKER, Applied(applied))]
    assert at_work().handle(SERVER, Lost(0, lost)) == [Loss(SERVER, 0, lost)]


def test_a_new_server_also_says_that_its_rows_lack_nothing() -> None:
    class Whole(Rows):
        def load(self, checkpoint: int | None) -> SavedProgress:
            return SavedProgress({0: Progress(5, b"5")}, {0: Progress(5, b"5")})

    core, view = ServerCore(SERVER, cast(Shard, Whole())), View.first(servers=1, workers=1)
    core.handle(CONTROLLER, Load(view, None, {}))
    assert Send(CONTROLLER, Lost(0, 0)) in core.handle(WORKER, Hello(Progress(5, b"5"), BEGINNING))


# ---- rows that come back while the job is to end --------------------------------------------------------------------


def with_a_new_server() -> tuple[ControllerCore, Member]:
    """A job with parity, one of whose servers has just been replaced, and takes its rows from the others."""
    core = at_work(servers=3, workers=1, parity=True)
    core.died(Member(Role.SERVER, 1, 1))
    new = Member(Role.SERVER, 1, 2)
    assert sent(core.up(new), Rebuild) == [new]
    return core, new


def test_a_server_whose_rows_come_back_hears_that_the_last_save_waits_for_them() -> None:
    core, new = with_a_new_server()
    assert sent(core.save(), Hurry) == []  # training goes on meanwhile
    assert sent(core.stop(), Hurry) == [new]
    assert sent(core.stop(), Hurry) == []  # once


def test_a_server_that_begins_later_hears_it_behind_its_orders() -> None:
    core = at_work(servers=3, workers=1, parity=True)
    core.stop()
    core.died(Member(Role.SERVER, 1, 1))
    new = Member(Role.SERVER, 1, 2)
    kinds = [type(each.message) for each in core.up(new) if isinstance(each, Send) and each.to == new]
    assert kinds == [Rebuild, Hurry]


def test_a_server_hears_it_when_all_data_have_ended() -> None:
    core, new = with_a_new_server()
    assert sent(core.handle(Member(Role.WORKER, 0, 1), Finished()), Hurry) == [new]
