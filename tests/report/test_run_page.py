"""What is told of runs that no test could train: long ones, and ones with extreme values."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from holdfast.events import Happening, HistoryEvent
from holdfast.planner import PlsMeter
from holdfast.report.facts import RunFacts
from holdfast.report.page import PageTable, ReportPage, Section, render
from holdfast.report.run_page import run_page
from holdfast.types import CheckpointInfo, Kind
from tests.report.browser import sheets
from tests.report.test_words import CALCULATOR

BEGAN_S = 1.79e9


def checkpoint(number: int, *, scale: float = 1.0, metrics: dict[str, float] | None = None) -> CheckpointInfo:
    return CheckpointInfo(
        id=f"c{number}",
        step=1000 * number,
        term=1,
        kind=Kind.FULL,
        parent=None,
        base=None,
        created_s=BEGAN_S + 600 * number,
        size_bytes=int(65_200_000 * scale),
        rows_written=number,
        full_bytes=65_200_000,
        metrics=metrics or {},
        stall_s=0.9996 * scale,
        duration_s=59.99 * scale,
    )


def facts(*checkpoints: CheckpointInfo, took_over: HistoryEvent | None = None) -> RunFacts:
    return RunFacts(
        url="runs/long",
        made_s=BEGAN_S,
        run="long",
        term=1,
        checkpoints=checkpoints,
        garbage=0,
        history=() if took_over is None else (took_over,),
        grid=None,
        stored=(),
        restores=None,
        meter=PlsMeter(total_samples=1000, budget=3e-9, pls=2e-12),
        jobs=(),
        problems=(),
    )


def section(page: ReportPage, title: str) -> Section:
    return next(each for each in page.sections if each.title == title)


def told(page: ReportPage) -> list[str]:
    """Every text that we write."""
    tables = [table for each in page.sections for table in each.tables]
    texts = [*page.notices, *(card.value for card in page.cards), *(card.note for card in page.cards)]
    texts += [text for each in page.sections for text in each.text]
    return texts + [cell for table in tables for row in table.rows for cell in row]


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e6])
def test_no_figure_of_a_page_is_written_as_a_calculator_would(scale: float) -> None:
    infos = [checkpoint(number, scale=scale, metrics={"loss": scale / number}) for number in (1, 2)]
    event = HistoryEvent(
        what=Happening.TOOK_OVER, at_s=BEGAN_S, exact=True, term=2, writer="w", from_step=1, idle_s=1e4 * scale
    )
    page = run_page(facts(*infos, took_over=event))
    assert [text for text in told(page) if CALCULATOR.search(text)] == []
    drawn = re.findall(r"<(?:text|title|tspan)[^>]*>([^<]+)", render(page))
    assert drawn
    assert [text for text in drawn if CALCULATOR.search(text)] == []


def test_every_metric_has_a_chart_over_steps_and_all_its_digits() -> None:
    infos = [checkpoint(number, metrics={"auc": 0.7890123 + number / 1e6, "loss": 0.5}) for number in (1, 2, 3)]
    page = run_page(facts(*infos, checkpoint(4, metrics={"loss": float("nan")})))
    metrics = section(page, "Metrics")
    assert [chart.caption for chart in metrics.charts] == ["auc at each checkpoint.", "loss at each checkpoint."]
    (table,) = metrics.tables
    assert table.columns == ("step", "checkpoint", "auc", "loss")
    assert table.rows[0] == ["4,000", "full", "-", "nan"]
    assert table.rows[1] == ["3,000", "full", "0.789015", "0.5"]
    text = render(page)
    assert "step 2,000: auc 0.789014" in text
    assert "step 4,000: loss" not in text


def test_names_that_no_document_can_hold_are_written_out() -> None:
    odd = "\x00\x1b]8;\ud800\ufffe<b>"
    infos = [replace(checkpoint(number, metrics={odd: 0.5}), tag=odd) for number in (1, 2)]
    text = render(run_page(facts(*infos)))
    assert text.encode()
    assert "\\x00\\x1b]8;\\ud800" in text
    assert not set("\x00\x1b\ud800") & set(text)
    assert "<b>" not in text


def test_axes_have_units_and_dates() -> None:
    text = render(run_page(facts(*(checkpoint(number) for number in range(1, 30)))))
    labels = re.findall(r"<(?:text|tspan)[^>]*>([^<]+)", text)
    assert {"MB", "GB in all", "s"} <= set(labels)
    assert any(re.fullmatch(r"2026-09-2\d", label) for label in labels)
    assert any(re.fullmatch(r"\d\d:\d\d", label) for label in labels)


def test_all_rows_are_there_and_those_that_are_not_in_view_are_folded() -> None:
    page = run_page(facts(*(checkpoint(number) for number in range(1, 901))))
    (table,) = section(page, "What is kept").tables
    assert len(table.in_view) + len(table.folded) == 900
    text = render(page)
    assert text.count("<details>") == 1
    assert "Show 880 more" in text
    assert all(f">{1000 * number:,}<" in text for number in range(1, 901))
    assert "at most 400 of 900 checkpoints" in text


def test_tables_begin_with_what_names_their_rows() -> None:
    page = run_page(facts(checkpoint(1, metrics={"auc": 0.5})))
    assert [table.columns[0] for each in page.sections for table in each.tables] == ["step", "step", "from step"]


def test_print_shows_what_is_folded(tmp_path: Path) -> None:
    def printed(count: int) -> int:
        rows = [[str(number)] for number in range(count)]
        page = ReportPage(
            title="Many rows",
            subtitle="",
            notices=(),
            cards=(),
            sections=[Section(title="Rows", tables=[PageTable(caption="Rows", columns=("row",), rows=rows)])],
        )
        (tmp_path / "page.html").write_text(render(page), encoding="utf-8")
        return sheets(tmp_path / "page.html")

    assert printed(20) == 1
    assert printed(600) >= 5


class Outline(HTMLParser):
    """The elements of a page, for a reader that hears it."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def test_everything_has_a_name_for_who_hears_the_page() -> None:
    outline = Outline()
    outline.feed(render(run_page(facts(*(checkpoint(number, metrics={"auc": 0.5}) for number in range(1, 30))))))
    ids = {attributes["id"] for _, attributes in outline.elements if "id" in attributes}
    pictures = outline.all("svg")
    assert pictures
    assert all(picture["role"] == "img" and picture["aria-labelledby"] in ids for picture in pictures)
    assert all(each["aria-labelledby"] in ids for each in outline.all("section"))
    assert all(header["scope"] in ("row", "col") for header in outline.all("th"))
    assert len(outline.all("caption")) == len(outline.all("table")) == len(outline.all("tbody"))
    assert all(each["aria-label"] for each in outline.all("div") if each.get("role") == "region")
    assert not outline.all("script")
