"""Uses processor time for nothing while a job trains: ``python -m benchmarks.claims._burner FOLDER SHARE``.

What parity takes of a job's throughput is either waiting, or what other processes on the same machine take from those
that compute: caches, clocks, and the other half of a core. This is the second of them alone.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks.claims._cluster_job import END
from benchmarks.claims._parity_job import Gate

_PERIOD_S = 0.004  # as often as a server has something to do


def main(folder: Path, share: float) -> None:
    """Until the job ends; ``share`` of a core."""
    gate, end = Gate(folder), folder / END
    while not end.exists():
        began_s = time.perf_counter()
        while gate.is_open and time.perf_counter() - began_s < share * _PERIOD_S:
            pass
        time.sleep(max(0.0, _PERIOD_S - (time.perf_counter() - began_s)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
