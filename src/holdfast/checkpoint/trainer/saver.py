"""Takes snapshots, one at a time: the trainer's side of a save, up to the point where the loop continues."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.ranks.agreement import Agreement
from holdfast.checkpoint.snapshot.capture import Capture, OwnState
from holdfast.checkpoint.snapshot.captured import Captured, Snapshot
from holdfast.checkpoint.track.tracker import Tracker
from holdfast.checkpoint.trainer.handover import Handover
from holdfast.checkpoint.trainer.in_flight import InFlight
from holdfast.checkpoint.trainer.news import SharedNews
from holdfast.checkpoint.trainer.outcomes import Outcomes
from holdfast.checkpoint.trainer.save_plan import CountChanges, SavePlanner, SaveRequest
from holdfast.checkpoint.trainer.supervisor import Agents
from holdfast.checkpoint.training.rng import Generators
from holdfast.errors import RanksMissing
from holdfast.format.catalog import Intent
from holdfast.policy import Overlap
from holdfast.policy.overlap import Before, OverlapContext, before_save
from holdfast.runtime import SYSTEM, Runtime
from holdfast.types import Kind

logger = logging.getLogger("holdfast")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The first thing that all ranks hear of a save."""

    step: int
    before: Before
    intent: Intent | None  # None: other ranks have to be asked first

    def to_json(self) -> dict[str, Any]:
        """To be sent to other ranks."""
        intent = None if self.intent is None else self.intent.to_json()
        return {"step": self.step, "before": self.before.value, "intent": intent}

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Opening:
        """What rank 0 sent."""
        intent = None if told["intent"] is None else Intent.from_json(told["intent"])
        return cls(step=told["step"], before=Before(told["before"]), intent=intent)


class Saver:
    """Plans a save with the other ranks, and copies its contents to the agent; the outcome comes later."""

    def __init__(
        self,
        *,
        capture: Capture,
        tracker: Tracker,
        shared: SharedNews | None,
        planner: SavePlanner,
        outcomes: Outcomes,
        agents: Agents,
        agreement: Agreement,
        overlap: Overlap,
        handover: Handover,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._capture = capture
        self._tracker = tracker
        self._shared = shared  # of ranks that save more than rows
        self._planner = planner
        self._outcomes = outcomes
        self._agents = agents
        self._agreement = agreement
        self._overlap = overlap
        self._handover = handover
        self._runtime = runtime
        self._compared = False  # the ranks' tables, at the first save

    def start(self, *, restored: bool) -> None:
        """Training starts, or continues from a restored checkpoint.

        Checks that the ranks hold the same tables, and prepares what the first save would otherwise wait for.
        """
        self._capture.agree_on_tiles()
        if self._shared is not None and restored:
            self._shared.restored()
        self._capture.start()
        self._capture.require_same_rows(self._agreement, changed=False)
        self._capture.warm_up(self._planner.stored(self._outcomes.position))

    def has_news(self) -> bool:
        """Whether the last checkpoint lacks something, on any rank. All ranks ask this at the same point."""
        try:
            news = self._tracker.has_news() or (self._shared is not None and self._shared.exist())
        except Exception:  # a state that cannot be looked at: the save says so, to all ranks
            news = True
        return self._agreement.any(news)

    def agree(self, request: SaveRequest, *, force: bool = False) -> Intent | None:
        """What all ranks snapshot now; None if nothing, such as while the last save is still being written.

        ``force`` waits instead of skipping. All ranks of a job call this at the same step, with the same ``force``.
        """
        self._agents.poll()
        opening = self._opened(request, force)
        if opening.before is Before.SKIP:
            return None
        # Each rank by itself, outside of a collective: only then it sees that its agent died, and settles the save.
        self._agents.prepare()
        self._agents.settle(cancel=opening.before is Before.CANCEL)
        if self._agents.fence.is_open:  # of a job of one rank
            self._outcomes.refuse(request.step, self._agents.fence.problem)
            return None
        return opening.intent if opening.intent is not None else self._agreed(request)

    def take(self, intent: Intent, request: SaveRequest) -> bool:
        """Copy this rank's part of what was agreed on; False if its agent died meanwhile.

        If a rank cannot take its part, the agents of the others learn that from the store, and nothing is committed.
        """
        if intent.parent != self._outcomes.position.checkpoint:
            self._tracker.mark_all()  # rank 0 saw another outcome of the last save: its rows may be missing in it
        started_s = self._runtime.monotonic_s()
        copied = False
        try:
            copied = self._handover.copy(
                intent,
                lambda: self._captured(intent, request),
                on_complete=None if request.priority else self._remember,
                started_s=started_s,
                state_apart=self._planner.in_grid(intent.kind),
                in_slices=self._outcomes.failure is None,  # else in one piece, which nothing can overtake
            )
        finally:
            self._meet_if_apart(copied)
        if copied:
            self._handover.seal(started_s)
            stall_s = self._runtime.monotonic_s() - started_s
            self._outcomes.taken(intent, stall_s, device_bytes=self._handover.device_bytes)
        return copied

    def _meet_if_apart(self, copied: bool) -> None:
        """Wait for ranks on other machines: a sealed part waits in vain for those that do not come.

        On one machine the agents see whether the other ranks are alive, and nobody waits. A rank that is alone with
        its part gives it up.
        """
        if self._agreement.world == 1 or self._agreement.peers:
            return
        try:
            self._agreement.any(not copied)
        except BaseException:  # mostly RanksMissing
            if copied:
                self._handover.abandon()
            raise

    def _opened(self, request: SaveRequest, force: bool) -> Opening:
        """Rank 0's decision whether a save is taken, and which one, where that needs nothing of other ranks."""
        agreement = self._agreement
        if agreement.rank != 0:
            return self._heard(request)
        before = self._before(request, force)
        alone = before is not Before.SKIP and self._compared and self._agents.is_settled and self._plans_alone(request)
        intent = self._intended_alone(request) if alone else None
        opening = Opening(step=request.step, before=before, intent=intent)
        if agreement.world > 1:
            # Who waits here is woken when the other ranks copy already, on a core that one of them has.
            agreement.broadcast(opening.to_json(), wait=opening.intent is None)
        return opening

    def _heard(self, request: SaveRequest) -> Opening:
        """What rank 0 says. It does not wait for us, so this may be what it said long ago, at a step of its own."""
        agreement, opening = self._agreement, Opening.from_json(self._agreement.broadcast(None))
        if opening.step != request.step:
            raise RanksMissing(
                f"rank 0 saves step {opening.step}, but rank {agreement.rank} of {agreement.world} is at step "
                f"{request.step}: all ranks must call the same methods of their Checkpointer at the same steps, save() "
                "too"
            )
        return opening

    def _plans_alone(self, request: SaveRequest) -> bool:
        """Whether no other rank has to be asked what a save holds."""
        return not (self._capture.must_agree or self._counts_everywhere(request))

    def _intended_alone(self, request: SaveRequest) -> Intent | None:
        self._tracker.look()
        return self._intended(request, self._capture.changed)

    def _agreed(self, request: SaveRequest) -> Intent | None:
        """What the save holds, where ranks have to tell each other something first."""
        if not self._compared:
            self._compared = True
            self._capture.require_same_rows(self._agreement, changed=True)
        self._capture.agree(self._agreement)
        self._tracker.look()
        count = self._count(request)
        own = self._intended(request, count) if self._agreement.rank == 0 else None
        published = self._agreement.broadcast(own.to_json() if own is not None and self._agreement.world > 1 else None)
        return own if own is not None or published is None else Intent.from_json(published)

    def _before(self, request: SaveRequest, force: bool) -> Before:
        """What happens to the save in progress before this one is taken, or whether this one is."""
        in_flight, may_retry = self._outcomes.in_flight, self._outcomes.may_retry()
        found = before_save(
            OverlapContext(
                overlap=self._overlap,
                rows_only=request.priority,
                under_way=in_flight is not None,
                under_way_rows_only=in_flight is not None and in_flight.is_priority,
                is_forced=force,
                may_retry=may_retry,
            )
        )
        if in_flight is not None and request.priority and may_retry:
            self._tell_late(request, in_flight)
        elif in_flight is not None and found is Before.SKIP and self._overlap is Overlap.SKIP:
            self._tell_skipped(request)
        return found

    def _tell_late(self, request: SaveRequest, in_flight: InFlight) -> None:
        if not self._outcomes.delay_rows():
            return  # they stay due: told and counted once, not at every step
        told = "step %d: the priority save due now waits for the save of step %d, which is still being written; %s"
        logger.info(told, request.step, in_flight.intent.step, self._outcomes.age)

    def _tell_skipped(self, request: SaveRequest) -> None:
        if not self._outcomes.skip():
            return  # the save stays due: it is told and counted once, not at every step
        age = self._outcomes.age
        logger.info("step %d: skipped a save because the previous one is still being written; %s", request.step, age)

    def _count(self, request: SaveRequest) -> CountChanges:
        """What changed: on rank 0, which stands for all, unless they hold different rows."""
        if not self._counts_everywhere(request):
            return self._capture.changed
        stored = self._planner.stored(self._outcomes.position)
        counted = self._capture.changed_everywhere(stored, self._agreement)
        return lambda _: counted

    def _counts_everywhere(self, request: SaveRequest) -> bool:
        return not request.priority and self._capture.is_divided and self._planner.counts_changes

    def _intended(self, request: SaveRequest, count: CountChanges) -> Intent | None:
        """The intent that all ranks receive; None if a priority save has no checkpoint to build on."""
        position = self._outcomes.position
        if request.priority and position.baseline is None:
            return None
        return self._planner.intend(request, position, count)

    def _captured(self, intent: Intent, request: SaveRequest) -> Snapshot:
        """The rank's own state comes from the request, shared decisions from the intent."""
        if intent.kind is Kind.PRIORITY:
            return self._capture.take_rows(intent.step)
        place, position = request.place, self._outcomes.position
        generators = Generators.now() if place.rng is None else None
        return self._capture.take(
            intent,
            OwnState(
                step=intent.step,
                reader=place.reader,
                rng=lambda: place.rng if generators is None else generators.to_tree(),
            ),
            (lambda: position.job_at(intent, request.pls)) if self._agreement.rank == 0 else None,
            baseline=position.baseline if intent.parent == position.checkpoint else None,
        )

    def _remember(self, captured: Captured) -> None:
        """Of this checkpoint, if it is one, for whoever asks whether something has changed since."""
        if self._shared is not None:
            self._shared.snapshot(captured)
