"""How a job goes, in a terminal: its processes, its speed, its checkpoints, and what happened last."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.cluster.controller.accounts import Accounts
from holdfast.cluster.controller.audience import log
from holdfast.cluster.controller.protection import Protection
from holdfast.cluster.controller.words import describe
from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.happenings import Committed, Died, Event, Replaced, Resized, Started
from holdfast.figures import NOTHING, number
from holdfast.printable import printable
from holdfast.runtime import SYSTEM, Runtime

logger = logging.getLogger("holdfast")

_EVENTS = 6  # that are shown
_MEMBERS = 12  # that are shown, those that are being replaced first
_REFRESH_S = 0.5
_NARROW = 76  # columns, below which figures stand one under another


class LiveView:
    """Draws itself anew twice a second. Everything it shows comes from events and reports.

    Where the terminal goes away, events are logged from then on: a job is worth more than its view.

    Args:
        accounts: What members say of themselves.
        servers: How many there are.
        workers: How many there are.
        console: Where to draw; otherwise stderr.
        runtime: Clock.
    """

    def __init__(
        self,
        accounts: Accounts,
        *,
        servers: int,
        workers: int,
        console: Console | None = None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._accounts = accounts
        self._servers = servers
        self._places = self._places_of(workers)
        self._runtime = runtime
        self._console = console or _Terminal(stderr=True)
        self._events: deque[tuple[float, str]] = deque(maxlen=_EVENTS)
        self._began_s = self._drawn_s = runtime.monotonic_s()
        self._is_started = False
        self._down: set[tuple[Role, int]] = set()
        self._committed: Committed | None = None
        self._committed_s = 0.0
        self._deaths = 0
        self._protection = Protection()
        self._is_lost = False
        self._live = Live(console=self._console, auto_refresh=False, transient=False)

    def __enter__(self) -> Self:
        self._try(self._live.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._draw()
        self._try(self._live.stop)

    def tell(self, event: Event) -> None:
        """Something happened."""
        if self._is_lost:
            log(event)
        self._events.append((self._runtime.monotonic_s() - self._began_s, printable(describe(event))))
        self._protection.tell(event)
        match event:
            case Started():
                self._is_started = True
            case Died(member=member):
                self._deaths += 1
                self._down.add(_place(member))
            case Replaced(member=member):
                self._down.discard(_place(member))
            case Resized(workers=workers):
                self._places = self._places_of(workers)
            case Committed():
                self._committed, self._committed_s = event, self._runtime.monotonic_s()

    def turn(self) -> None:
        """Draw, if it is time to."""
        now_s = self._runtime.monotonic_s()
        if now_s - self._drawn_s >= _REFRESH_S:
            self._drawn_s = now_s
            self._draw()

    def page(self) -> RenderableType:
        """What is drawn now. Events come before processes: a low terminal cuts off the end."""
        events = Table.grid(padding=(0, 1))
        events.add_column(no_wrap=True)
        events.add_column(overflow="ellipsis", no_wrap=True)
        for at_s, what in self._events:
            events.add_row(Text(f"{at_s:8.1f} s", style="dim"), Text(what))
        return Group(self._summary(), events, self._members())

    def _draw(self) -> None:
        self._try(lambda: self._live.update(self.page(), refresh=True))

    def _try(self, draw: Callable[[], None]) -> None:
        if self._is_lost:
            return
        try:
            draw()
        except OSError as error:
            self._is_lost = True
            self._console.quiet = True
            with suppress(OSError):
                self._live.stop()  # what is printed goes past it again
            logger.warning("the live view has ended: %s; events are logged from now on", error)

    # ---- figures ---------------------------------------------------------------------------------------------------

    def _summary(self) -> RenderableType:
        pairs = 1 if self._console.width < _NARROW else 2
        table = Table.grid(padding=(0, 2))
        for _ in range(pairs):
            table.add_column(style="dim", no_wrap=True)
            table.add_column(min_width=12, overflow="ellipsis", no_wrap=True)
        figures = list(self._figures())
        for first in range(0, len(figures), pairs):
            table.add_row(*(cell for pair in figures[first : first + pairs] for cell in pair))
        return table

    def _figures(self) -> Iterator[tuple[str, str]]:
        standing, now_s = self._accounts.standing, self._runtime.monotonic_s()
        measured = self._accounts.measured.figures()
        behind = standing.most_behind
        yield "samples/s", number(standing.samples_per_s(now_s))
        yield "step", str(self._accounts.step)
        yield "rows/s", number(standing.rows_per_s(now_s))
        yield "last checkpoint", self._saved(now_s)
        yield "loss", number(standing.mean_loss)
        yield "deaths", str(self._deaths)
        yield "AUC", f"{measured['auc']:.4f}, when last saved" if "auc" in measured else NOTHING
        yield "PLS", number(self._accounts.pls)
        yield "rows behind", NOTHING if behind is None else f"by up to {behind} of their worker's steps"
        yield "redundancy", self._protection.redundancy
        yield "ladder", self._protection.ladder
        yield "last recovery", self._protection.last

    def _saved(self, now_s: float) -> str:
        if self._committed is None:
            return "none in this job"
        return f"step {self._committed.step}, {now_s - self._committed_s:.0f} s ago"

    # ---- processes -------------------------------------------------------------------------------------------------

    def _places_of(self, workers: int) -> list[tuple[Role, int]]:
        servers = [(Role.SERVER, index) for index in range(self._servers)]
        return servers + [(Role.WORKER, index) for index in range(workers)]

    def _members(self) -> RenderableType:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for name in ("process", "state", "steps", "samples/s", "rows/s", "behind", "loss"):
            words = name in ("process", "state")
            table.add_column(name, justify="left" if words else "right", no_wrap=True, overflow="ellipsis")
        shown = sorted(self._places, key=lambda place: place not in self._down)[:_MEMBERS]
        for place in self._places:
            if place in shown:
                table.add_row(*self._row(*place))
        hidden = len(self._places) - len(shown)
        return Group(table, Text(f"  and {hidden} more", style="dim")) if hidden else table

    def _row(self, role: Role, index: int) -> Iterator[RenderableType]:
        standing, now_s = self._accounts.standing, self._runtime.monotonic_s()
        yield f"{role.value} {index}"
        yield self._state((role, index))
        if role is Role.SERVER:
            yield from ("", "", number(standing.server_speed(index, now_s)), "", "")
            return
        report = standing.workers.get(index, {})
        yield str(report.get("steps", ""))
        yield number(standing.worker_speed(index, now_s))
        yield from ("", str(report.get("behind", "")), number(report.get("loss")))

    def _state(self, place: tuple[Role, int]) -> Text:
        if place in self._down:
            return Text("being replaced", style="red")
        return Text("at work", style="green") if self._is_started else Text("starting", style="yellow")


class _Terminal(Console):
    """One whose end is an error like any other: otherwise rich would end this process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError("nobody reads it any more")


def _place(member: Member) -> tuple[Role, int]:
    return member.role, member.index
