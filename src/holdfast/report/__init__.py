"""Reports: one self-contained HTML page about a run or an emulation. Needs ``holdfast[report]``."""

from holdfast.report.making import emulation_report, run_report

__all__ = ["emulation_report", "run_report"]
