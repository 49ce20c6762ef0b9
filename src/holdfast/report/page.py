"""The page: what it is made of, and its HTML.

Everything that comes from a run is text: the template escapes it, charts get it as JSON in a block that is not run, and
the page's content policy runs no script but our two and loads nothing from anywhere.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import altair
import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined

_DRAW = """
const charts = document.querySelectorAll("figure[data-chart]");
const draw = figure => vegaEmbed(
  figure.querySelector("div"), JSON.parse(document.getElementById(figure.dataset.chart).textContent),
  {actions: false, renderer: "svg", ast: true}
).catch(error => { figure.querySelector("div").textContent = "This chart could not be drawn: " + error; throw error; });
Promise.allSettled([...charts].map(draw)).then(results => {
  document.body.dataset.drawn = results.filter(result => result.status === "fulfilled").length;
});
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A figure to see at once."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A Vega-Lite chart, and what it shows in words."""

    caption: str
    spec: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text; columns after the first ``words`` hold numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What stands under one heading."""

    title: str
    text: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A report."""

    title: str
    subtitle: str
    notices: Sequence[str]
    cards: Sequence[Card]
    sections: Sequence[Section]


def render(page: Page) -> str:
    """The page's HTML."""
    library = _library()
    environment = Environment(
        loader=PackageLoader("holdfast.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {_hash(library)} {_hash(_DRAW)}"
    return environment.get_template("page.html.jinja").render(page=page, policy=policy, library=library, draw=_DRAW)


@lru_cache(maxsize=1)
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed, of the version that altair writes for."""
    version = ".".join(altair.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    bundle: str = vl_convert.javascript_bundle(snippet="window.vegaEmbed = vegaEmbed;", vl_version=version)
    return bundle.replace("</script", "<\\/script")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
