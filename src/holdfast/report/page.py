"""The parts of a page, and its HTML.

Everything that comes from a run is text: the template escapes it, charts are rendered when the page is made, and the
page's content policy runs no script and loads nothing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from holdfast.printable import printable
from holdfast.report.svg import draw

_ROWS_IN_VIEW = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A key figure."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A Vega-Lite chart, and a text that says what it shows."""

    caption: str
    spec: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """Rows of text, each named by its first cell. Columns hold numbers, but for those named in ``words``."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Collection[str] = ()

    @property
    def in_view(self) -> Sequence[Sequence[str]]:
        """The rows that are not collapsed."""
        return self.rows[:_ROWS_IN_VIEW]

    @property
    def folded(self) -> Sequence[Sequence[str]]:
        """Rows that are seen when they are asked for, and in print."""
        return self.rows[_ROWS_IN_VIEW:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The contents under one heading."""

    title: str
    text: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[PageTable] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPage:
    """A report: its title, key figures and sections."""

    title: str
    subtitle: str
    notices: Sequence[str]
    cards: Sequence[Card]
    sections: Sequence[Section]


def render(page: ReportPage) -> str:
    """The page's HTML."""
    environment = Environment(
        loader=PackageLoader("holdfast.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=_shown,
    )
    style = stylesheet()
    policy = f"default-src 'none'; style-src {_hash(style)}"
    template = environment.get_template("page.html.jinja")
    return template.render(page=page, policy=policy, style=Markup(style), draw=_drawn)


def stylesheet() -> str:
    """How a page looks: on a screen, in the dark, on paper."""
    return files("holdfast.report").joinpath("page.css").read_text(encoding="utf-8")


def _drawn(chart: Chart, caption_id: str) -> Markup:
    return Markup(draw(chart.spec, described_by=caption_id))


def _shown(value: object) -> object:
    """What comes from a run, without what steers a page or cannot be written; markup is ours."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
