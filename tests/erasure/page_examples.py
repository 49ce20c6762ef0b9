"""The examples of docs/spec/parity.md."""

from __future__ import annotations

import numpy as np

from holdfast.erasure.code import Code
from holdfast.erasure.ring import Ring

CODE = Code(data=3, parity=2)


def stripe() -> str:
    """Three records of a row of two weights and a sum, and their parities."""
    records = np.array([[1, -2, 0.5], [0.1, 0, 3], [-1, 1e-3, 7]], "<f4").view("<u4")[:, None]
    units = [*records, *CODE.encode(records)]
    names = [f"member {number}" for number in range(3)] + [f"parity {number}" for number in range(2)]
    return "".join(f"{name}  {unit.tobytes().hex(' ')}\n" for name, unit in zip(names, units, strict=True))


def rotation() -> str:
    """Which unit of the stripes of one cycle each server of a ring of six has: p0, p1 or d0, d1, d2."""
    ring = Ring(servers=tuple(range(6)), data=CODE.data, parity=CODE.parity)
    lines = ["position  " + "   ".join(f"{position}" for position in range(ring.size))]
    for number in range(ring.size):
        units = {at: f"d{member}" for member, at in enumerate(ring.members(number))}
        units |= {at: f"p{parity}" for parity, at in enumerate(ring.hosts(number))}
        lines.append(f"stripe {number}  " + "  ".join(units.get(at, "  ") for at in range(ring.size)))
    return "".join(f"{line.rstrip()}\n" for line in lines)
