"""From a run or an emulation to the text of its page."""

from __future__ import annotations

from importlib.util import find_spec

from holdfast.errors import ConfigurationError
from holdfast.planner.emulated import EmulatedJob
from holdfast.report.facts import gather
from holdfast.run import Run

_NEEDED = ("altair", "jinja2", "vl_convert")


def run_report(run: Run) -> str:
    """A page about a run; raises CheckpointNotFound where there is none."""
    _require_libraries()
    from holdfast.report.page import render
    from holdfast.report.run_page import run_page

    return render(run_page(gather(run)))


def emulation_report(job: EmulatedJob) -> str:
    """A page about an emulation."""
    _require_libraries()
    from holdfast.report.emulation_page import emulation_page
    from holdfast.report.page import render

    return render(emulation_page(job))


def _require_libraries() -> None:
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise ConfigurationError(f"reports need {', '.join(missing)}: install holdfast[report]")
