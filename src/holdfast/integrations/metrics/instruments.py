"""What is measured: the instruments, which are the same for every backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Form(Enum):
    """How values of an instrument add up."""

    COUNT = "count"
    LAST = "last"
    SECONDS = "seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instrument:
    """One thing that is measured. Labels tell its series apart; their values may be any text."""

    name: str
    form: Form
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One value, and the step of the training that it belongs to, where there is one."""

    instrument: Instrument
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    step: int | None = None


SAVES = Instrument(name="saves", form=Form.COUNT, help="Snapshots taken.", labels=("kind",))
STALL = Instrument(name="stall_seconds", form=Form.SECONDS, help="Training waited this long for a snapshot.")
COMMITS = Instrument(name="commits", form=Form.COUNT, help="Saves committed.", labels=("kind",))
BYTES = Instrument(name="written_bytes", form=Form.COUNT, help="Bytes of committed saves.", labels=("kind",))
COMMIT = Instrument(name="commit_seconds", form=Form.SECONDS, help="From a snapshot's beginning to its commit.")
COMMITTED_AT = Instrument(
    name="last_commit_timestamp_seconds", form=Form.LAST, help="When the last commit was made, since 1970."
)
COMMITTED_STEP = Instrument(name="last_commit_step", form=Form.LAST, help="The step of the last commit.")
METRIC = Instrument(name="checkpoint_metric", form=Form.LAST, help="Metrics of the last commit.", labels=("name",))
FAILURES = Instrument(name="save_failures", form=Form.COUNT, help="Saves that were given up.")
RECOVERIES = Instrument(name="recoveries", form=Form.COUNT, help="Restores of a training.", labels=("rung",))
RECOVERY = Instrument(name="recovery_seconds", form=Form.SECONDS, help="How long a restore took.", labels=("rung",))
RECOVERED_ROWS = Instrument(
    name="recovered_rows", form=Form.COUNT, help="Rows that dead servers' replacements received.", labels=("source",)
)
REDUNDANT = Instrument(name="redundant", form=Form.LAST, help="1 while every row is protected by parity, otherwise 0.")
REDUNDANCY = Instrument(
    name="redundancy_seconds", form=Form.SECONDS, help="From a death or the start until every row is protected."
)
PLS = Instrument(name="pls", form=Form.LAST, help="The portion of lost samples, over the whole training.")
DEATHS = Instrument(name="deaths", form=Form.COUNT, help="Processes of a cluster that died.", labels=("role",))
REPLACEMENT = Instrument(name="replacement_seconds", form=Form.SECONDS, help="From a death to its replacement.")
LOST_SAMPLES = Instrument(
    name="lost_samples", form=Form.COUNT, help="Samples whose effect recoveries lost or repeated."
)
LOST_STEPS = Instrument(name="lost_steps", form=Form.COUNT, help="Steps that a cluster repeated after going back.")
PAUSE = Instrument(name="pause_seconds", form=Form.SECONDS, help="A cluster paused this long for a save.")
WORKERS = Instrument(name="workers", form=Form.LAST, help="Workers of a cluster after a resize.")
STEP = Instrument(name="step", form=Form.LAST, help="Optimizer steps of a cluster.")
SAMPLES = Instrument(name="samples_per_second", form=Form.LAST, help="What all workers of a cluster train on, lately.")
ROWS = Instrument(name="rows_per_second", form=Form.LAST, help="What servers read and update, lately.")
BEHIND = Instrument(name="behind_steps", form=Form.LAST, help="Of its own steps, what some worker's rows may lack.")
LOSS = Instrument(name="loss", form=Form.LAST, help="On the average of all workers of a cluster.")

INSTRUMENTS = tuple(each for each in list(globals().values()) if isinstance(each, Instrument))
