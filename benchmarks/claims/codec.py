"""Few bits: what each codec loses, and how fast it is, beside PyTorch's own quantization.

``adaptive`` is the paper's greedy search, with the bins and ratio that PyTorch's search is given too; ``default`` is
the codec that Holdfast takes. Figures that must not exceed 1 are the worst of all kinds of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.claims import _codec_gpu
from benchmarks.claims._codec_losses import SEARCHED, mean_losses
from benchmarks.claims._codec_rows import drawn_rows, trained_rows
from benchmarks.claims._codec_speeds import THREADS, Speed, measure
from benchmarks.claims._codec_sweeps import default_gain, gains, sweep_figures, sweep_table
from benchmarks.claims._codec_times import rates, time_figures, time_table
from benchmarks.report import Figure, Report, Table
from holdfast.kernels import quantize


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure."""

    rows: int  # that our codecs and PyTorch's plain ones encode
    searched_rows: int  # that PyTorch's search encodes: it is slow
    loss_rows: int  # of each kind that losses are taken from
    kmeans_rows: int  # that share centroids: they are slow too
    repeats: int
    steps: int  # of the training
    scale: float  # of its tables


PLANS = {
    "tiny": Plan(rows=1000, searched_rows=100, loss_rows=600, kmeans_rows=100, repeats=1, steps=1, scale=0.0005),
    "small": Plan(
        rows=200_000, searched_rows=5_000, loss_rows=20_000, kmeans_rows=4_000, repeats=5, steps=10, scale=0.002
    ),
    "full": Plan(
        rows=1_000_000, searched_rows=50_000, loss_rows=100_000, kmeans_rows=10_000, repeats=9, steps=60, scale=0.005
    ),
}


def run(scale: str) -> Report:
    plan = PLANS[scale]
    quantize.warm_up()
    rows = drawn_rows(plan.rows)
    kinds = {"drawn": rows[: plan.loss_rows]}
    for optimizer in ("adagrad", "sgd"):
        kinds[f"trained_{optimizer}"] = trained_rows(plan.steps, plan.scale, optimizer)[: plan.loss_rows]
    losses = {kind: mean_losses(part, plan.searched_rows, plan.kmeans_rows) for kind, part in kinds.items()}
    speeds = measure(rows, plan.searched_rows, plan.repeats)
    times = rates(speeds)
    sweeps = {bits: gains(kinds["drawn"], bits) for bits in SEARCHED}
    figures = {**_loss_figures(losses), **_speed_figures(speeds), **time_figures(times)}
    for bits, found in sweeps.items():
        figures |= sweep_figures(found, bits)
    if scale == "full" and _codec_gpu.is_there():
        figures |= _codec_gpu.measure()
    tables = [_loss_table(kind, each) for kind, each in losses.items()]
    tables += [_speed_table(speeds), time_table(times)]
    tables += [sweep_table(each, bits, default_gain(kinds["drawn"], bits)) for bits, each in sweeps.items()]
    return Report(title="Few bits", tables=tables, figures=figures)


def _loss_figures(losses: dict[str, dict[str, float]]) -> dict[str, Figure]:
    """The worst of all kinds of rows for what must hold, each kind for itself beside it."""
    figures: dict[str, Figure] = {}
    for bits in SEARCHED:
        ratios = {kind: found[f"default_{bits}bit"] / found[f"adaptive_{bits}bit"] for kind, found in losses.items()}
        figures[f"default_l2_over_greedy_l2_{bits}bit"] = max(ratios.values())
        figures |= {f"default_l2_over_greedy_l2_{bits}bit_{kind}": ratio for kind, ratio in ratios.items()}
    for bits in (2, 4):
        figures[f"default_l2_over_torch_l2_{bits}bit"] = max(
            found[f"default_{bits}bit"] / found[f"torch_searched_{bits}bit"] for found in losses.values()
        )
    for kind, found in losses.items():
        figures |= {f"l2_{kind}_{name}": loss for name, loss in found.items()}
    return figures


def _speed_figures(speeds: dict[str, Speed]) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for count in THREADS:
        suffix = "" if count == 1 else f"_{count}threads"
        for bits in (2, 4):
            rival = speeds[f"torch_searched_{bits}bit_{count}threads"].encode
            for name in ("adaptive", "default"):
                ours = speeds[f"{name}_{bits}bit_{count}threads"].encode
                figures[f"{name}_over_torch_speedup_{bits}bit{suffix}"] = ours / rival
        for bits in (2, 4, 8):
            ours, rival = (speeds[f"{name}_{bits}bit_{count}threads"].encode for name in ("asymmetric", "torch"))
            figures[f"asymmetric_over_torch_speedup_{bits}bit{suffix}"] = ours / rival
    for name, speed in speeds.items():
        figures[f"encode_GBps_{name}"] = speed.encode
        if speed.decode:
            figures[f"decode_GBps_{name}"] = speed.decode
    return figures


def _loss_table(kind: str, losses: dict[str, float]) -> Table:
    names = (
        "symmetric",
        "asymmetric",
        "adaptive",
        "default",
        "torch",
        "torch_searched",
        "kmeans_vector",
        "kmeans_contiguous",
        "kmeans_clustered",
    )
    norm = losses["row_norm"]
    rows = [(name, *(_share(losses.get(f"{name}_{bits}bit"), norm) for bits in (*SEARCHED, 8))) for name in names]
    headers = ("codec", *(f"{bits} bits" for bits in (*SEARCHED, 8)))
    return Table(caption=f"Mean l2 loss over the mean row norm, {kind} rows", headers=headers, rows=rows)


def _share(loss: float | None, norm: float) -> str:
    return "" if loss is None else f"{loss / norm:.4f}"


def _speed_table(speeds: dict[str, Speed]) -> Table:
    rows = []
    for bits in (*SEARCHED, 8):
        for name in ("symmetric", "asymmetric", "adaptive", "default", "kmeans_vector", "torch", "torch_searched"):
            found = [speeds.get(f"{name}_{bits}bit_{count}threads") for count in THREADS]
            if speed := found[0]:
                cells = [f"{value:.3g}" for each in found if each for value in (each.encode, each.decode)]
                rows.append((bits, name, speed.bytes_per_row, cells[0], cells[2], cells[1], cells[3]))
    headers = ("bits", "codec", "bytes per row", "encode ×1", "×2", "decode ×1", "×2")
    return Table(caption="GB of float32 rows per second, on one thread and on two", headers=headers, rows=rows)
