"""What saves of a model of TorchRec take from the training, and how much deltas write, beside DCP's best staging.

Two ranks, tables divided by rows, fused row-wise Adagrad. Between two saves a tenth of the rows trains, through the
operators' own backward passes. The stall is the time until ``save`` returns, on the slowest rank; DCP's is the staging
of the same state, fused optimizer included, into memory that it keeps and shares, and nothing else of its save. That is
the best of its ways; it cannot stage ShardedTensors, so it is given the tensors inside of them. They take turns, and no
save is being written while another is measured.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.multiprocessing.spawn import start_processes

from benchmarks.report import Figure, Report, Table

if TYPE_CHECKING:
    from benchmarks.claims._torchrec_rank import Size

WORLD = 2
SHARE = 0.1
SIZES: dict[str, dict[str, int]] = {
    "tiny": {"tables": 2, "rows": 400, "dim": 8, "rounds": 1},
    "small": {"tables": 8, "rows": 200_000, "dim": 128, "rounds": 5},
    "full": {"tables": 8, "rows": 400_000, "dim": 128, "rounds": 11},
}


def run(scale: str) -> Report:
    if importlib.util.find_spec("torchrec") is None:
        raise SystemExit(
            "this benchmark needs TorchRec: `make test-torchrec` builds its environment; run it there, as "
            "`.venv-torchrec/bin/python -m benchmarks torchrec`"
        )
    from benchmarks.claims._torchrec_rank import Size

    size = Size(**SIZES[scale], share=SHARE)
    found = _measured(size)
    waits: Mapping[str, Sequence[float]] = found["waits"]
    return Report(title="Saves of a model of TorchRec", tables=[_table(waits)], figures=_figures(waits, found["sizes"]))


def _measured(size: Size) -> dict[str, Any]:
    from benchmarks.claims._torchrec_rank import measure

    with tempfile.TemporaryDirectory(prefix="holdfast-torchrec-") as folder:
        start_processes(measure, (WORLD, size, folder), nprocs=WORLD)
        found: dict[str, Any] = json.loads((Path(folder) / "found.json").read_text())
        return found


def _figures(waits: Mapping[str, Sequence[float]], sizes: Mapping[str, int]) -> dict[str, Figure]:
    best_s = statistics.median(waits["dcp_best"])
    return {
        "torchrec_delta_bytes_over_full": sizes["incremental"] / sizes["full"],
        "torchrec_stall_over_dcp_best_delta": statistics.median(waits["delta"]) / best_s,
        "torchrec_stall_over_dcp_best_full": statistics.median(waits["full"]) / best_s,
        "torchrec_full_bytes": sizes["full"],
        **{f"torchrec_{name}_stall_s": statistics.median(each) for name, each in waits.items()},
        "torchrec_rows_share": SHARE,
        "torchrec_ranks": WORLD,
    }


def _table(waits: Mapping[str, Sequence[float]]) -> Table:
    rows = [(name, statistics.median(each), min(each), max(each)) for name, each in waits.items()]
    return Table(caption="seconds that training waits", headers=("save", "median", "least", "most"), rows=rows)
