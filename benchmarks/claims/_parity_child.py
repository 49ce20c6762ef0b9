"""The controller of one rival: ``python -m benchmarks.claims._parity_child RIVAL SERVERS WORKERS``."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.claims._cluster_job import JobPlan
from benchmarks.claims._cluster_runs import run_cluster
from benchmarks.claims._parity_rivals import WHOLE, options_of
from benchmarks.ending import end_with_parent
from holdfast.cluster.happenings import Event, Redundant


def main(rival: str, servers: int, workers: int) -> None:
    end_with_parent()
    plan = JobPlan.read()

    def hear(event: Event) -> None:
        if isinstance(event, Redundant):
            Path(plan.folder, WHOLE).touch()

    run_cluster(plan, servers=servers, workers=workers, on_event=hear, **options_of(rival, plan.data))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
