"""The record of a job: what happened to it and how fast it went, kept in its run (docs/spec/job.md).

A job writes pages: small immutable objects, each with what came since the one before. Nothing refers to them: where one
is missing, that part of the story is.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from types import UnionType
from typing import Any, Final, Self, get_args, get_type_hints

from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.deaths import Death, deaths_of
from holdfast.cluster.happenings import Event, LadderChosen
from holdfast.errors import DamagedData, ObjectNotFound
from holdfast.format import fields as checked
from holdfast.format.document import Json, parse, seal, unseal
from holdfast.printable import printable
from holdfast.storage import Store

logger = logging.getLogger("holdfast")

PREFIX: Final = "jobs/"
_KIND, _VERSION = "job", 1
_NAME = re.compile(r"jobs/(\d{5,})-(\d{6,})")
_LONGEST_TEXT = 2000  # of what a process said before it died: the end of it
_ROLES = {role.value: role for role in Role}


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a job went, on the average since the speed before.

    Args:
        at_s: When that was found, since 1970.
        step: That the training had come to.
        samples_per_s: Of all workers.
        rows_per_s: That servers read and updated.
    """

    at_s: float
    step: int
    samples_per_s: float
    rows_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job, as far as it is told.

    Args:
        term: Of the run, while this job owned it.
        servers: How many held tables.
        workers: How many computed gradients, at the end of what is told.
        synchronous: Whether they took each step together.
        events: What happened, oldest first (``holdfast.cluster.happenings``).
        speeds: Oldest first.
    """

    term: int
    servers: int
    workers: int
    synchronous: bool
    events: tuple[Event, ...] = ()
    speeds: tuple[Speed, ...] = ()

    @property
    def deaths(self) -> tuple[Death, ...]:
        """Those of its processes, oldest first: by which rung each was made up for, and what it cost."""
        return deaths_of(self.events)

    @property
    def ladder(self) -> str | None:
        """The rungs that it had, in words; None: it is not told."""
        return next((event.rungs for event in self.events if isinstance(event, LadderChosen)), None)

    def encode(self) -> bytes:
        """As a page of its own."""
        body = {
            "term": self.term,
            "servers": self.servers,
            "workers": self.workers,
            "synchronous": self.synchronous,
            "events": [_event_to_json(each) for each in self.events],
            "speeds": [[each.at_s, each.step, each.samples_per_s, each.rows_per_s] for each in self.speeds],
        }
        return seal(_KIND, _VERSION, body)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, *, name: str) -> Self:
        """Parse and check the page ``name``. What a later release tells of, and this one does not know, is left out."""
        body = unseal(_KIND, _VERSION, data, name=name)
        return parse(name, lambda: cls._from_json(body))

    @classmethod
    def _from_json(cls, body: Json) -> Self:
        events = [_event_from_json(each) for each in checked.items(body["events"], "events")]
        return cls(
            term=checked.integer(body["term"], "term"),
            servers=checked.integer(body["servers"], "servers"),
            workers=checked.integer(body["workers"], "workers"),
            synchronous=checked.flag(body["synchronous"], "synchronous"),
            events=tuple(each for each in events if each is not None),
            speeds=tuple(_speed(each) for each in checked.items(body["speeds"], "speeds")),
        )


def page_name(term: int, number: int) -> str:
    """The object of a job's page; names sort like numbers."""
    return f"{PREFIX}{term:05d}-{number:06d}"


def term_of_page(name: str) -> int | None:
    """The job that a page belongs to; None if this is the name of none."""
    match = _NAME.fullmatch(name)
    return int(match.group(1)) if match else None


def read_jobs(store: Store) -> tuple[JobRecord, ...]:
    """The jobs that a run tells of, oldest first. A page that cannot be read is left out, and warned of."""
    found: dict[int, list[JobRecord]] = {}
    for info in store.list(PREFIX):
        term = term_of_page(info.name)
        if term is None:
            continue
        try:
            found.setdefault(term, []).append(JobRecord.decode(store.get(info.name), name=info.name))
        except ObjectNotFound:
            continue
        except DamagedData as error:
            logger.warning("a part of a job's record is left out: %s", printable(str(error)))
    return tuple(_joined(term, pages) for term, pages in sorted(found.items()) if pages)


def _joined(term: int, pages: Iterable[JobRecord]) -> JobRecord:
    last = list(pages)
    return JobRecord(
        term=term,
        servers=last[-1].servers,
        workers=last[-1].workers,
        synchronous=last[-1].synchronous,
        events=tuple(event for page in last for event in page.events),
        speeds=tuple(speed for page in last for speed in page.speeds),
    )


# ---- events ----------------------------------------------------------------------------------------------------------


def _what(kind: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


_EVENTS: dict[str, type] = {_what(kind): kind for kind in get_args(Event)}


def _event_to_json(event: Event) -> Json:
    return {"what": _what(type(event)), **{each.name: _plain(getattr(event, each.name)) for each in fields(event)}}


def _plain(value: Any) -> Json:
    if isinstance(value, Member):
        return [value.role.value, value.index, value.incarnation]
    return value[-_LONGEST_TEXT:] if isinstance(value, str) else value


def _event_from_json(body: Json) -> Event | None:
    kind = _EVENTS.get(checked.text(body["what"], "what"))
    if kind is None:
        return None
    hints = get_type_hints(kind)
    told = [each for each in fields(kind) if each.name in body or each.default is MISSING]  # an older page tells less
    event: Event = kind(**{each.name: _typed(hints[each.name], body[each.name], each.name) for each in told})
    return event


def _typed(hint: Any, value: Json, name: str) -> Any:
    if isinstance(hint, UnionType):
        return None if value is None else _typed(get_args(hint)[0], value, name)
    if hint is Member:
        role, index, incarnation = checked.items(value, name, 3)
        return Member(_ROLES[role], checked.integer(index, name), checked.integer(incarnation, name))
    check: Any = {int: checked.integer, float: checked.real, bool: checked.flag, str: checked.text}[hint]
    return check(value, name)


def _speed(value: Json) -> Speed:
    at_s, step, samples, rows = checked.items(value, "speed", 4)
    return Speed(
        at_s=checked.real(at_s, "at_s"),
        step=checked.integer(step, "step"),
        samples_per_s=checked.real(samples, "samples_per_s", least=0.0),
        rows_per_s=checked.real(rows, "rows_per_s", least=0.0),
    )
