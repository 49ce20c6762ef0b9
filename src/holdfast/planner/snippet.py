"""The Python call that sets up a training as planned. The only place that spells these names."""

from __future__ import annotations

from holdfast.planner.recovery import Recovery
from holdfast.planner.rungs import Rung
from holdfast.policy import Full

_PRIORITY = "hf.MFU(r=0.125)"  # CPR's share; MFU loses least accuracy for its memory


def python_call(rung: Rung, *, pls: float | None = None) -> str:
    """The call, to paste. ``pls`` is the budget that partial recovery was planned with."""
    arguments = [
        f"save={_save(rung)}",
        f"strategy={_strategy(rung, pls)}",
        "retention=hf.KeepLast(2)",
        *([f"precision={_precision(rung)}"] if rung.stored.bits is not None else []),
    ]
    lines = ["hf.Checkpointer(", "    url,", "    model=model,", "    optimizer=optimizer,", "    loader=loader,"]
    lines += [f"    {argument}," for argument in arguments]
    if rung.parity is not None:
        code = f"{rung.parity.data} + {rung.parity.parities}"
        lines.append(f"    # below parity over {code} embedding servers, for failures that it cannot repair")
    return "\n".join([*lines, ")"])


def _precision(rung: Rung) -> str:
    return f"hf.Bits({rung.bits}{', difference=True' if rung.stored.difference else ''})"


def _save(rung: Rung) -> str:
    return "hf.Never()" if rung.interval_s is None else f"hf.EveryMinutes({float(f'{rung.interval_s / 60:.3g}'):.12g})"


def _strategy(rung: Rung, pls: float | None) -> str:
    consistent = f"hf.{type(rung.strategy).__name__}()"
    if rung.recovery is Recovery.FULL:
        return consistent
    budget = f"budget=hf.PLS({rung.expected_pls if pls is None else pls:.2g})"
    others = [] if isinstance(rung.strategy, Full) else [f"consistent={consistent}"]
    return f"hf.Partial({', '.join([f'priority={_PRIORITY}', *others, budget])})"
