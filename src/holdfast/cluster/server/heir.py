"""What server 0 does when the controller is gone: one last save, after which everyone ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from holdfast.cluster.core.leader import Leader, Report
from holdfast.cluster.core.members import Member, View
from holdfast.cluster.core.messages import Message, Send
from holdfast.cluster.core.notes import Decide, Outcome
from holdfast.cluster.core.outputs import Output, Ready
from holdfast.cluster.core.progress import Progress
from holdfast.cluster.saved import step_of
from holdfast.cluster.server.saves import SavedRows


class Heir:
    """Leads the last save. Its process delivers what it tells its own server.

    Args:
        view: The last one.
        saves: Of its server.
        synchronous: How the job trains.
        last_save: The number of the last save that its server heard of.
        progress: How far each worker came, those included that have left, as its server knows it.
    """

    def __init__(
        self,
        view: View,
        saves: SavedRows,
        *,
        synchronous: bool,
        last_save: int,
        progress: Mapping[int, Progress],
    ) -> None:
        self._saves = saves
        self._synchronous = synchronous
        self._leader = Leader(view, synchronous=synchronous, last_save=last_save, progress=progress)

    def begin(self) -> list[Send]:
        """Stop everyone."""
        return list(self._carry_out(self._leader.stop()))

    def concerns(self, message: Message) -> bool:
        """Whether this is for a leader, and not for a server."""
        return isinstance(message, Report)

    def handle(self, sender: Member, message: Message) -> list[Send]:
        """Take in what was meant for the controller."""
        return list(self._carry_out(self._leader.handle(sender, message)))

    def settle(self, outcome: Outcome) -> list[Send]:
        """The last save is committed, or not."""
        if outcome.problem:
            return list(self._carry_out(self._leader.call_off(outcome.save, outcome.problem)))
        return list(self._carry_out(self._leader.committed(outcome.save)))

    def _carry_out(self, outputs: Iterable[Output]) -> Iterator[Send]:
        for output in outputs:
            if isinstance(output, Ready):
                yield from self._decide(output)
            elif isinstance(output, Send):
                yield output

    def _decide(self, ready: Ready) -> Iterator[Send]:
        surveys = tuple(ready.surveys[server] for server in sorted(ready.surveys))
        step = step_of(ready.progress, synchronous=self._synchronous)
        decided = self._saves.decide(Decide(ready.save, step, surveys, force=True))
        if decided.problem:
            yield from self._carry_out(self._leader.call_off(ready.save, decided.problem))
        else:
            yield from self._carry_out(self._leader.snapshot(decided.intent))
