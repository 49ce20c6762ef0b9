"""The Python call that sets up a training as planned. The only place that spells these names."""

from __future__ import annotations

from holdfast.planner.recovery import Recovery
from holdfast.planner.rungs import Rung, Workload
from holdfast.policy import Full
from holdfast.policy.parity import Parity

_PRIORITY = "hf.MFU(r=0.125)"  # CPR's share; MFU loses least accuracy for its memory


def python_call(rung: Rung, work: Workload | None = None, *, pls: float | None = None) -> str:
    """The call, to paste: of a ``Cluster`` where the job is one, else of a ``Checkpointer``.

    Args:
        rung: What was planned.
        work: For what job. None: one without servers.
        pls: The budget that partial recovery was planned with.
    """
    is_cluster = work is not None and work.is_cluster
    name = "hf.Cluster" if is_cluster else "hf.Checkpointer"
    arguments = _of_cluster(rung, work, pls) if is_cluster and work is not None else _of_checkpointer(rung, pls)
    saved = [f"save={_save(rung)}", *arguments, "retention=hf.KeepLast(2)"]
    precise = [f"precision={_precision(rung)}"] if rung.stored.bits is not None else []
    who = ("model=build_model", "train=train", "workers=workers") if is_cluster else ("model=model", "loader=loader")
    lines = [f"    {each}," for each in ("url", *who, "optimizer=optimizer", *saved, *precise)]
    return "\n".join([f"{name}(", *lines, ")"])


def _of_checkpointer(rung: Rung, pls: float | None) -> list[str]:
    consistent = f"hf.{type(rung.strategy).__name__}()"
    if rung.recovery is Recovery.FULL:
        return [f"strategy={consistent}"]
    others = [] if isinstance(rung.strategy, Full) else [f"consistent={consistent}"]
    return [f"strategy=hf.Partial({', '.join([f'priority={_PRIORITY}', *others, _budget(rung, pls)])})"]


def _of_cluster(rung: Rung, work: Workload, pls: float | None) -> list[str]:
    rungs = [] if rung.price is None else [f"parity={_parity(rung.price.parity)}"]
    if rung.recovery is Recovery.PARTIAL:
        rungs += ["partial=True", _budget(rung, pls), f"priority={_PRIORITY}"]
    strategy = f"strategy=hf.{type(rung.strategy).__name__}()"
    return [strategy, f"servers={work.servers}", f"ladder=hf.Ladder({', '.join(rungs)})"]


def _parity(parity: Parity) -> str:
    return f"hf.Parity(data={parity.data}, parity={parity.parity})"


def _budget(rung: Rung, pls: float | None) -> str:
    return f"budget=hf.PLS({rung.expected_pls if pls is None else pls:.2g})"


def _precision(rung: Rung) -> str:
    return f"hf.Bits({rung.bits}{', difference=True' if rung.stored.difference else ''})"


def _save(rung: Rung) -> str:
    return "hf.Never()" if rung.interval_s is None else f"hf.EveryMinutes({float(f'{rung.interval_s / 60:.3g}'):.12g})"
