"""``holdfast plan``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.common import JsonFlag, output
from holdfast.cli.drawing import print_json, size
from holdfast.cli.tables import FittedTable
from holdfast.figures import number

if TYPE_CHECKING:
    from holdfast.planner import Assessed, Parity, ParityOption, ParityPrice, Plan, Rates, Rung, Workload

_HOUR_S = 3600.0
_GB = 1e9
_LACKING = "*"  # marks what the job cannot have
_AUTO = "auto"


def plan(
    hours: Annotated[float, typer.Option(metavar="H", help="How long the training takes without failures.")],
    model_gb: Annotated[float, typer.Option(metavar="GB", help="Tables and their optimizer state.")],
    nodes: Annotated[int, typer.Option(metavar="N", help="Machines.")] = 1,
    mtbf_hours: Annotated[float | None, typer.Option(metavar="H", help="Time between failures of the job.")] = None,
    node_mtbf_hours: Annotated[float | None, typer.Option(metavar="H", help="Or that of a single node.")] = None,
    servers: Annotated[int | None, typer.Option(metavar="N", help="Servers of a cluster, which hold tables.")] = None,
    lost_servers: Annotated[int, typer.Option(metavar="N", help="Nodes lost per failure.")] = 1,
    copy_gb_per_s: Annotated[
        float | None, typer.Option(help="Into the snapshot, per node, which training waits for; default: as measured.")
    ] = None,
    stall_minutes: Annotated[
        float | None, typer.Option(metavar="M", help="Or: how long training waits for a full save.")
    ] = None,
    write_gb_per_s: Annotated[float, typer.Option(help="To the store, of all nodes together.")] = 1.0,
    read_gb_per_s: Annotated[float, typer.Option(help="From the store, of all nodes together.")] = 2.0,
    network_gb_per_s: Annotated[
        float | None, typer.Option(help="Between nodes, into one, for parity; default: as measured.")
    ] = None,
    reschedule_minutes: Annotated[float, typer.Option(metavar="M", help="Until a failed node is replaced.")] = 5.0,
    changed_in_30_minutes: Annotated[float, typer.Option(metavar="SHARE", help="Rows that change.")] = 0.26,
    dim: Annotated[int, typer.Option(help="Values per embedding row.")] = 64,
    pls: Annotated[float | None, typer.Option(metavar="SHARE", help="Samples whose effect may be lost.")] = None,
    accuracy_loss: Annotated[float | None, typer.Option(metavar="X", help="Or: accuracy that may be lost.")] = None,
    pls_slope: Annotated[
        float | None, typer.Option(metavar="X", help="Accuracy lost per unit of PLS; goes with it.")
    ] = None,
    quantize: Annotated[bool, typer.Option("--quantize", help="Allow checkpoints in few bits.")] = False,
    parity: Annotated[
        str | None, typer.Option(metavar="K+R", help="Consider parity: R for every K servers; of a cluster: auto.")
    ] = None,
    free_gb: Annotated[float | None, typer.Option(metavar="GB", help="Memory of a server beside its rows.")] = None,
    max_memory: Annotated[float, typer.Option(metavar="SHARE", help="Extra memory parity may use.")] = 1.0,
    max_overhead: Annotated[float | None, typer.Option(metavar="SHARE", help="Of the training time.")] = None,
    json: JsonFlag = False,
) -> None:
    """Recommend how to survive failures, with what every alternative would cost."""
    from holdfast.planner import Budget, ChangedShare, Workload, python_call
    from holdfast.planner import plan as make_plan
    from holdfast.planner.measured import COPY_BYTES_PER_S

    copy_gb_per_s = COPY_BYTES_PER_S.value / _GB if copy_gb_per_s is None else copy_gb_per_s
    copied = copy_gb_per_s * nodes if stall_minutes is None else model_gb / _above_zero(stall_minutes) / 60
    work = Workload(
        total_s=hours * _HOUR_S,
        mtbf_s=_mtbf_s(nodes, mtbf_hours, node_mtbf_hours),
        model_bytes=model_gb * _GB,
        rates=_rates(copied, write_gb_per_s, read_gb_per_s),
        reschedule_s=reschedule_minutes * 60,
        servers=nodes if servers is None else servers,
        lost_servers=lost_servers,
        changed=ChangedShare(share=changed_in_30_minutes),
        dim=dim,
        is_cluster=servers is not None,
    )
    allowed_pls = _pls(pls, accuracy_loss, pls_slope)
    budget = Budget(pls=allowed_pls, quantized=quantize, memory_share=max_memory, overhead_share=max_overhead)
    asked = parity or (_AUTO if work.is_cluster else None)
    considered = _parity(asked, work, network_gb_per_s, free_gb)
    made = make_plan(work, budget, parity=considered.price)
    call = python_call(made.recommended, work, pls=allowed_pls)
    if json:
        print_json(_plain(made, call, considered.why))
    else:
        _print(made, call, considered.why)


def _rates(copy_gb_per_s: float, write_gb_per_s: float, read_gb_per_s: float) -> Rates:
    from holdfast.planner import Rates

    return Rates(
        copy_bytes_per_s=copy_gb_per_s * _GB,
        write_bytes_per_s=write_gb_per_s * _GB,
        read_bytes_per_s=read_gb_per_s * _GB,
    )


def _mtbf_s(nodes: int, of_job: float | None, of_node: float | None) -> float:
    from holdfast.planner import IndependentNodes

    if (of_job is None) == (of_node is None):
        raise typer.BadParameter("pass how often the job fails: one of --mtbf-hours and --node-mtbf-hours")
    if of_node is not None:
        return IndependentNodes(probability=1 / (_above_zero(of_node) * _HOUR_S), period_s=1.0).mtbf_s(nodes)
    assert of_job is not None
    return of_job * _HOUR_S


def _pls(pls: float | None, accuracy_loss: float | None, slope: float | None) -> float | None:
    from holdfast.planner import AccuracyLine

    if (accuracy_loss is None) != (slope is None) or (pls is not None and slope is not None):
        raise typer.BadParameter("pass --pls, or --accuracy-loss with --pls-slope (measured on your own trainings)")
    return pls if accuracy_loss is None or slope is None else AccuracyLine(slope=slope).pls_for(accuracy_loss)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Considered:
    """A parity that the plan compares, and why it is this one, or none."""

    price: ParityPrice | None = None
    why: str = ""


def _parity(text: str | None, work: Workload, network_gb_per_s: float | None, free_gb: float | None) -> _Considered:
    from holdfast.planner import Ladder, ParityPrice, ParityRates, choose, parities_for

    if free_gb is not None and not 0 <= free_gb < float("inf"):
        raise typer.BadParameter(f"memory must be at least 0, got {number(free_gb)}", param_hint="--free-gb")
    if text is None:
        return _Considered()
    rates = ParityRates() if network_gb_per_s is None else ParityRates(network_bytes_per_s=network_gb_per_s * _GB)
    if text != _AUTO:
        option = _option(_parse_parity(text), work, free_gb)
        if not option.fits:
            raise typer.BadParameter(
                f"{option.problem}; pass more servers, a larger K, or {_AUTO}", param_hint="--parity"
            )
        return _Considered(price=ParityPrice(parity=option.parity, rates=rates), why=option.price)
    chosen = choose(Ladder(), [_option(each, work, free_gb) for each in parities_for(work.servers)])
    parity = chosen.ladder.parity
    return _Considered(price=None if parity is None else ParityPrice(parity=parity, rates=rates), why=chosen.why)


def _parse_parity(text: str) -> Parity:
    from holdfast.planner import Parity

    data, plus, parities = text.partition("+")
    if not (plus and data.isdecimal() and parities.isdecimal()):
        raise typer.BadParameter(f"{text!r} is not K+R, such as 4+1", param_hint="--parity")
    return Parity(data=int(data), parity=int(parities))


def _option(parity: Parity, work: Workload, free_gb: float | None) -> ParityOption:
    """What it takes of a server, were tables divided evenly: nothing more is known of them."""
    from holdfast.planner import ParityOption

    needed_bytes = round(work.model_bytes / work.servers * parity.parity / parity.data)
    left_bytes = None if free_gb is None else round(free_gb * _GB)
    return ParityOption(parity=parity, needed_bytes=needed_bytes, left_bytes=left_bytes)


def _above_zero(value: float) -> float:
    if not value > 0:
        raise typer.BadParameter(f"times must be above 0, got {number(value)}")
    return value


def _plain(made: Plan, call: str, why: str) -> dict[str, Any]:
    from holdfast.planner import RATES

    return {
        "expected_failures": made.workload.total_s / made.workload.mtbf_s,
        "mtbf_s": made.workload.mtbf_s,
        "recommended": made.recommended.name,
        "reduction": made.reduction,
        "python": call,
        "why": why or None,
        "unavailable": made.unavailable.rung.name if made.unavailable else None,
        "rates": {each.key: {"value": each.value, "figure": each.figure, "source": each.source} for each in RATES},
        "alternatives": [
            {**_rung_values(each.rung), "objections": list(each.objections), "needs": each.needs}
            for each in made.alternatives
        ],
    }


def _rung_values(rung: Rung) -> dict[str, Any]:
    return {
        "name": rung.name,
        "recovery": rung.recovery,
        "strategy": rung.strategy.to_dict(),
        "bits": rung.bits,
        "difference": rung.stored.difference,
        "interval_s": rung.interval_s,
        "write_s": rung.write_s,
        "written_bytes": rung.written_bytes,
        "parity": None if rung.price is None else rung.price.parity.to_dict(),
        "memory_share": rung.memory_share,
        "expected_pls": rung.expected_pls,
        "overheads": rung.overheads,
        "overhead_share": rung.overhead_share,
    }


def _print(made: Plan, call: str, why: str) -> None:
    work = made.workload
    output().print(
        f"{number(work.total_s / _HOUR_S, 6)} h of training, a failure every {number(work.mtbf_s / _HOUR_S)} h: "
        f"{number(work.total_s / work.mtbf_s)} expected, each taking {work.lost_servers} of {work.servers} servers"
    )
    output().print(_settings(made))
    needs = dict.fromkeys(each.needs for each in made.alternatives if each.needs is not None)
    for each in needs:
        output().print(f"{_LACKING} needs {each}: pass --servers")
    if why:
        output().print(why)
    output().print(_times(made))
    output().print(f"recommended: {_in_short(made, made.recommended)}\n")
    output().print(call, soft_wrap=True)
    if made.unavailable is not None:
        output().print(f"\n{_unavailable(made, made.unavailable)}")


def _in_short(made: Plan, rung: Rung) -> str:
    reduction = made.reduction_by(rung)
    better = f", {reduction:.0%} less than full checkpoints" if reduction > 0 else ""
    return f"{rung.name}, {rung.overhead_share:.2%}{better}"


def _unavailable(made: Plan, better: Assessed) -> str:
    return f"better still: {_in_short(made, better.rung)}. It needs {better.needs}"


def _settings(made: Plan) -> FittedTable:
    drawn = FittedTable("setting", "save every", "size", "overhead", "PLS", "but", optional=("size",))
    for each in made.alternatives:
        rung = each.rung
        drawn.add_row(
            f"{rung.name} {_LACKING}" if each.needs else rung.name,
            _interval(rung.interval_s),
            size(int(rung.written_bytes)),
            f"{rung.overhead_share:.2%}",
            number(rung.expected_pls, 2) if rung.expected_pls else "-",
            "; ".join(each.objections),
            style=_style(made, each),
        )
    return drawn


def _times(made: Plan) -> FittedTable:
    """Where the time of each alternative goes, as shares of the training."""
    drawn = FittedTable("setting", "save", "load", "lost", "resched.", "parity", title="Overhead by cause")
    for each in made.alternatives:
        parts = each.rung.overheads
        shares = (parts.save_s, parts.load_s, parts.lost_s, parts.reschedule_s, parts.parity_s)
        cells = (f"{part / made.workload.total_s:.2%}" for part in shares)
        drawn.add_row(each.rung.name, *cells, style=_style(made, each))
    return drawn


def _style(made: Plan, each: Assessed) -> str | None:
    if each.rung is made.recommended:
        return "bold"
    return "dim" if each.objections or each.needs else None


def _interval(interval_s: float | None) -> str:
    if interval_s is None:
        return "never"
    return f"{number(interval_s / 60)} min" if interval_s < 2 * _HOUR_S else f"{number(interval_s / _HOUR_S)} h"
