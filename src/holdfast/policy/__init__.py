"""Pure decisions, context in, decision out: when to save, full or delta, what to do on overlap, what to keep."""

from holdfast.policy.base import Policy, registered
from holdfast.policy.grid import DeadShare, Grid, Pairs, Rule, default_strategy
from holdfast.policy.ladder import Ladder
from holdfast.policy.optimizer import SGD, Adagrad, Adam, Optimizer, RowwiseAdagrad
from holdfast.policy.overlap import Overlap
from holdfast.policy.parity import Parity
from holdfast.policy.partial import PLS, Partial
from holdfast.policy.precision import Auto, Bits, Exact, PaperTable, PerTable, Precision
from holdfast.policy.priority import MFU, SCAR, SSU, Priority, largest
from holdfast.policy.retention import (
    KeepAll,
    KeepBest,
    KeepEvery,
    KeepLast,
    KeepTagged,
    Retention,
    TimeToLive,
    closure,
)
from holdfast.policy.strategy import Consecutive, Full, Intermittent, OneShot, Strategy, StrategyContext
from holdfast.policy.tables import Constant, Init, Normal, Tables, Uniform, tables
from holdfast.policy.when import UNREACHABLE_STEPS, EveryMinutes, EverySteps, Never, SaveContext, SavePolicy
from holdfast.types import Stored

__all__ = [
    "MFU",
    "PLS",
    "SCAR",
    "SGD",
    "SSU",
    "UNREACHABLE_STEPS",
    "Adagrad",
    "Adam",
    "Auto",
    "Bits",
    "Consecutive",
    "Constant",
    "DeadShare",
    "EveryMinutes",
    "EverySteps",
    "Exact",
    "Full",
    "Grid",
    "Init",
    "Intermittent",
    "KeepAll",
    "KeepBest",
    "KeepEvery",
    "KeepLast",
    "KeepTagged",
    "Ladder",
    "Never",
    "Normal",
    "OneShot",
    "Optimizer",
    "Overlap",
    "Pairs",
    "PaperTable",
    "Parity",
    "Partial",
    "PerTable",
    "Policy",
    "Precision",
    "Priority",
    "Retention",
    "RowwiseAdagrad",
    "Rule",
    "SaveContext",
    "SavePolicy",
    "Stored",
    "Strategy",
    "StrategyContext",
    "Tables",
    "TimeToLive",
    "Uniform",
    "closure",
    "default_strategy",
    "largest",
    "registered",
    "tables",
]
