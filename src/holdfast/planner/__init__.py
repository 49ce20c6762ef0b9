"""What failures cost and how to pay less: failure models, the cost model, PLS, plans and the emulation's clock."""

from holdfast.planner.accuracy import AccuracyLine
from holdfast.planner.clock import Emulation, Event, EventKind, VirtualClock
from holdfast.planner.clustersize import IndependentNodes, LinearMtbf, MtbfOverNodes
from holdfast.planner.deltas import ChangedShare, Rates, RowFormat, Sizes, sizes_of, stored_for
from holdfast.planner.emulated import EmulatedJob, EmulatedRun, EmulatedStrategy
from holdfast.planner.failures import FAMILIES, Exponential, FailureModel, Gamma, LogNormal, Weibull
from holdfast.planner.fitting import (
    LEAST_FAILURES,
    Fit,
    FitCurves,
    JobHistory,
    Survival,
    fit,
    fit_all,
    fit_curves,
    kaplan_meier,
    survival_rmse,
)
from holdfast.planner.job import Job, Overheads
from holdfast.planner.ladder import Choice, Outlook, ParityOption, choose, parities_for
from holdfast.planner.measured import RATES, Measured, ParityRates
from holdfast.planner.parity import ParityPrice
from holdfast.planner.planning import Assessed, Budget, Plan, plan
from holdfast.planner.pls import expected_pls
from holdfast.planner.recovery import (
    Comparison,
    Recovery,
    compare,
    full_interval_s,
    full_recovery,
    partial_interval_s,
    partial_recovery,
)
from holdfast.planner.repairs import Repairs
from holdfast.planner.rungs import Rung, Workload, full_rung, parity_rung, partial_rung
from holdfast.planner.schedule import Failure, FailureSchedule
from holdfast.planner.snippet import python_call
from holdfast.policy import Ladder, Parity
from holdfast.policy.pls import PlsMeter

__all__ = [
    "FAMILIES",
    "LEAST_FAILURES",
    "RATES",
    "AccuracyLine",
    "Assessed",
    "Budget",
    "ChangedShare",
    "Choice",
    "Comparison",
    "EmulatedJob",
    "EmulatedRun",
    "EmulatedStrategy",
    "Emulation",
    "Event",
    "EventKind",
    "Exponential",
    "Failure",
    "FailureModel",
    "FailureSchedule",
    "Fit",
    "FitCurves",
    "Gamma",
    "IndependentNodes",
    "Job",
    "JobHistory",
    "Ladder",
    "LinearMtbf",
    "LogNormal",
    "Measured",
    "MtbfOverNodes",
    "Outlook",
    "Overheads",
    "Parity",
    "ParityOption",
    "ParityPrice",
    "ParityRates",
    "Plan",
    "PlsMeter",
    "Rates",
    "Recovery",
    "Repairs",
    "RowFormat",
    "Rung",
    "Sizes",
    "Survival",
    "VirtualClock",
    "Weibull",
    "Workload",
    "choose",
    "compare",
    "expected_pls",
    "fit",
    "fit_all",
    "fit_curves",
    "full_interval_s",
    "full_recovery",
    "full_rung",
    "kaplan_meier",
    "parities_for",
    "parity_rung",
    "partial_interval_s",
    "partial_recovery",
    "partial_rung",
    "plan",
    "python_call",
    "sizes_of",
    "stored_for",
    "survival_rmse",
]
