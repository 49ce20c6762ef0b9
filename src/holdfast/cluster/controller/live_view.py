"""How a job goes, in a terminal: its processes, its speed, its checkpoints, and what happened last."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.cluster.controller.standing import Standing
from holdfast.cluster.core.members import Member
from holdfast.cluster.happenings import (
    Committed,
    Died,
    Event,
    LostSamples,
    Paused,
    Replaced,
    SaveFailed,
    Started,
    WentBack,
)
from holdfast.figures import number
from holdfast.runtime import SYSTEM, Runtime

_EVENTS = 8  # that are shown
_REFRESH_S = 0.5


class LiveView:
    """Draws itself anew twice a second. Everything it shows comes from events and reports.

    Args:
        standing: What members say of themselves.
        servers: How many there are.
        workers: How many there are.
        console: Where to draw; otherwise the terminal.
        runtime: Clock.
    """

    def __init__(
        self,
        standing: Standing,
        *,
        servers: int,
        workers: int,
        console: Console | None = None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._standing = standing
        self._servers, self._workers = servers, workers
        self._runtime = runtime
        self._events: deque[tuple[float, str]] = deque(maxlen=_EVENTS)
        self._began_s = self._drawn_s = runtime.monotonic_s()
        self._down: set[str] = set()
        self._committed: Committed | None = None
        self._committed_s = 0.0
        self._pls: float | None = None
        self._deaths = 0
        self._live = Live(self._page(), console=console or Console(stderr=True), auto_refresh=False, transient=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.update(self._page(), refresh=True)
        self._live.stop()

    def tell(self, event: Event) -> None:
        """Something happened."""
        self._events.append((self._runtime.monotonic_s() - self._began_s, describe(event)))
        match event:
            case Died(member=member):
                self._deaths += 1
                self._down.add(_place(member))
            case Replaced(member=member):
                self._down.discard(_place(member))
            case Started():
                self._down.clear()
            case Committed():
                self._committed, self._committed_s = event, self._runtime.monotonic_s()
            case LostSamples(pls=pls):
                self._pls = pls

    def turn(self) -> None:
        """Draw, if it is time to."""
        now_s = self._runtime.monotonic_s()
        if now_s - self._drawn_s >= _REFRESH_S:
            self._drawn_s = now_s
            self._live.update(self._page(), refresh=True)

    def _page(self) -> RenderableType:
        events = Table.grid(padding=(0, 1))
        for at_s, what in self._events:
            events.add_row(Text(f"{at_s:8.1f} s", style="dim"), what)
        return Group(self._summary(), self._members(), events)

    def _summary(self) -> RenderableType:
        standing, now_s = self._standing, self._runtime.monotonic_s()
        table = Table.grid(padding=(0, 3))
        loss = standing.mean_loss()
        saved = "none yet"
        if self._committed is not None:
            saved = f"step {self._committed.step}, {now_s - self._committed_s:.0f} s ago"
        table.add_row("samples/s", number(standing.samples_per_s), "last checkpoint", saved)
        table.add_row("rows/s", number(standing.rows_per_s), "deaths", str(self._deaths))
        table.add_row(
            "loss", "-" if loss is None else number(loss), "PLS", "-" if self._pls is None else number(self._pls)
        )
        return table

    def _members(self) -> RenderableType:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for name in ("process", "state", "steps", "samples/s", "rows/s", "loss"):
            table.add_column(name, justify="left" if name in ("process", "state") else "right")
        for index in range(self._servers):
            speed = number(self._standing.server_speed(index))
            table.add_row(f"server {index}", self._state(f"server {index}"), "", "", speed, "")
        for index in range(self._workers):
            report = self._standing.workers.get(index, {})
            loss = report.get("loss")
            table.add_row(
                f"worker {index}",
                self._state(f"worker {index}"),
                str(report.get("steps", "")),
                number(self._standing.worker_speed(index)),
                "",
                "" if loss is None else number(loss),
            )
        return table

    def _state(self, place: str) -> Text:
        return Text("being replaced", style="red") if place in self._down else Text("at work", style="green")


def describe(event: Event) -> str:
    """An event in one line."""
    match event:
        case Started(took_s=took_s):
            return f"everyone is at work, after {took_s:.1f} s"
        case Died(member=member, how=how):
            return f"{member} died: {how.splitlines()[-1] if how else how}"
        case Replaced(member=member, by_spare=by_spare, took_s=took_s):
            return f"{member} is at work{' (a spare)' if by_spare else ''}, {took_s:.1f} s after the death"
        case WentBack(checkpoint=checkpoint, lost_steps=lost_steps):
            return f"everyone goes back to {checkpoint or 'the beginning'}: {lost_steps} steps are taken again"
        case Paused(step=step, pause_s=pause_s):
            return f"saved at step {step}: workers waited {pause_s:.2f} s"
        case Committed(checkpoint=checkpoint):
            return f"committed {checkpoint}"
        case SaveFailed(problem=problem):
            return f"a save was called off: {problem}"
        case LostSamples(member=member, steps=steps, pls=pls):
            return f"{member}: its rows lost {steps} steps; PLS {number(pls)}"


def _place(member: Member) -> str:
    return f"{member.role.value} {member.index}"
