"""Which servers of a job protect each other, and what that takes of each: settled before training starts."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from holdfast.cluster.parity.layout import RingLayout
from holdfast.cluster.parity.mirror import dense_size
from holdfast.cluster.placement import Placement
from holdfast.erasure.seating import Crowd, Seating, seat
from holdfast.errors import ConfigurationError
from holdfast.figures import number
from holdfast.kernels.records import words_of
from holdfast.policy.parity import PROCESS, Parity
from holdfast.types import UpdateRule

logger = logging.getLogger("holdfast")


def seats(parity: Parity, machines: Sequence[str]) -> Seating:
    """Divide a job's servers into rings, machines spread over them; refuse or warn where one has too many of a ring.

    Args:
        parity: What the job asks for.
        machines: Of each server, the machine that it runs on.
    """
    parity.require_servers(len(machines))
    domains = None if parity.domain == PROCESS else machines
    seating = seat(len(machines), data=parity.data, parity=parity.parity, domains=domains)
    if seating.most_lost > parity.parity:
        worst = max(seating.crowds, key=lambda crowd: len(crowd.servers))
        message = _too_many(parity, worst, len(machines))
        if parity.strict:
            raise ConfigurationError(f"Parity(strict=True): {message}")
        logger.warning("%s", message)
    return seating


def parity_bytes(placement: Placement, seating: Seating, rule: UpdateRule, dense_rule: UpdateRule) -> list[int]:
    """How many bytes parities and mirrors take of each server, beside its own rows.

    Args:
        placement: Of the whole model.
        seating: Which servers protect each other.
        rule: Of tables.
        dense_rule: Of dense parameters.
    """
    found = [0] * placement.servers
    for ring in seating.rings:
        layout = RingLayout(placement, ring)
        for server in ring.servers:
            found[server] = server_bytes(layout, server, rule, dense_rule)
    return found


def server_bytes(layout: RingLayout, server: int, rule: UpdateRule, dense_rule: UpdateRule) -> int:
    """How many bytes parities and mirrors take of one server.

    Args:
        layout: Of its ring.
        server: Which one.
        rule: Of tables.
        dense_rule: Of dense parameters.
    """
    placement, position = layout.placement, layout.ring.position(server)
    words = sum(
        lines.stripes.size(position) * words_of(rule, group.width)
        for lines, group in zip(layout.lines, placement.groups, strict=True)
    )
    mirrored = sum(dense_size(placement.dense[each], dense_rule) for each in layout.mirrored(server))
    return 4 * (words + mirrored)


def rows_bytes(placement: Placement, rule: UpdateRule, dense_rule: UpdateRule) -> list[int]:
    """How many bytes each server's own rows and slots take.

    Args:
        placement: Of the whole model.
        rule: Of tables.
        dense_rule: Of dense parameters.
    """
    return [
        4 * sum(group.size(server) * words_of(rule, group.width) for group in placement.groups)
        + 4 * dense_size(placement.dense[server], dense_rule)
        for server in range(placement.servers)
    ]


def require_memory(where: str, needed_bytes: int, available_bytes: int | None) -> None:
    """Refuse to start servers whose parities do not fit into memory.

    Args:
        where: A server, or a machine with several.
        needed_bytes: What its parities take.
        available_bytes: What is left beside its rows; None where that is not known.
    """
    if available_bytes is not None and needed_bytes > available_bytes:
        raise ConfigurationError(
            f"parity takes {_gigabytes(needed_bytes)} of {where}, where {_gigabytes(max(0, available_bytes))} of "
            "memory are left beside its rows: start servers on more machines, pass a larger data= to Parity, or drop it"
        )


def require_memory_of_rows(where: str, rows_bytes: int, free_bytes: int | None) -> None:
    """Refuse to start servers whose own rows do not fit into memory, whatever protects them.

    Args:
        where: A machine.
        rows_bytes: What rows and slots of its servers take.
        free_bytes: What is free there; None where that is not known.
    """
    if free_bytes is not None and rows_bytes > free_bytes:
        raise ConfigurationError(
            f"rows and their slots take {_gigabytes(rows_bytes)} of {where}, where {_gigabytes(free_bytes)} of memory "
            "are free: start servers on more machines, or train a smaller model"
        )


def _gigabytes(size_bytes: int) -> str:
    return f"{number(size_bytes / 1e9)} GB"


def _too_many(parity: Parity, crowd: Crowd, servers: int) -> str:
    rings = servers // parity.units
    together = ", ".join(map(str, crowd.servers))
    return (
        f"machine {crowd.domain} runs servers {together}, which protect each other: its death may "
        f"cost a stripe {len(crowd.servers)} units, and parity={parity.parity} makes up for {parity.parity}. Start at "
        f"most {rings * parity.parity} of {servers} servers on one machine, or pass domain='process' if only the "
        "deaths of processes count"
    )
