"""A rebuild whose servers have a network card each: what comes in there is limited, and processors have time.

On one machine bytes move as fast as processors copy them, which also gather, add and write rows. Where servers are on
machines of their own, their networks are slower than that, and what counts is whether these stand still. So servers and
spares get addresses of their own here, in a network namespace in which the system limits what each of these receives.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.claims._cluster_job import JobPlan
from benchmarks.claims._other_servers import OtherServers
from benchmarks.claims._parity_counts import moved_bytes
from benchmarks.claims._parity_floor import wire_floor
from benchmarks.claims._parity_recovery import rebuild
from holdfast.cluster.job import Job
from holdfast.cluster.launch.base import Surroundings
from holdfast.cluster.parity.layout import LARGE_BLOCK_BYTES
from holdfast.cluster.server import process
from holdfast.policy.parity import FAST

_MODULE = "benchmarks.claims._parity_links"
_BURST_BYTES = 1 << 21
_QUEUE_BYTES = 1 << 28  # nothing is dropped: what waits is bounded by the windows of connections
_UNLIMITED = "80gbit"
_QUANTUM_BYTES = 200_000  # that a class may send at a time, in its turn


@dataclass(frozen=True, slots=True, kw_only=True)
class OnLinks:
    """What a rebuild took, and its bytes alone."""

    rebuild_s: float
    floor_s: float
    heard_s: float


def rebuild_on_links(plan: JobPlan, *, servers: int, kills: int, bytes_per_s: int) -> OnLinks:
    """The medians over some deaths, in a network namespace; needs ``unshare``, ``ip`` and ``tc``.

    Args:
        plan: What to train.
        servers: How many there are.
        kills: How many of them die, one after the other.
        bytes_per_s: That each of them receives at most.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-links-") as folder:
        planned, found = Path(folder, "plan.json"), Path(folder, "found.json")
        plan.write(planned)
        arguments = str(planned), str(found), str(servers), str(kills), str(bytes_per_s)
        subprocess.run([*_apart(), sys.executable, "-m", _MODULE, *arguments], check=True)
        return OnLinks(**json.loads(found.read_text(encoding="utf-8")))


def can_limit_links() -> bool:
    """Whether this system lets us."""
    command = [*_apart(), "tc", "qdisc", "add", "dev", "lo", "root", "htb"]
    try:
        return subprocess.run(command, check=False).returncode == 0
    except OSError:
        return False


def run_server(payload: bytes, surroundings: Surroundings) -> None:
    """Be a server that listens at an address of its own."""
    job, member = Job.unpack(payload)
    place = member.index if member.index < job.servers else job.servers + member.incarnation - 1
    process.run(payload, replace(surroundings, host=_host(place)))


def main(planned: str, found: str, servers: str, kills: str, bytes_per_s: str) -> None:
    """In a namespace of its own."""
    _limit(int(bytes_per_s), places=int(servers) + int(kills) + 1)  # a spare for each death, and one that is left
    plan = JobPlan.read(Path(planned))
    streams = moved_bytes(plan, servers=int(servers), lost=1)
    floor = wire_floor(streams, block_bytes=LARGE_BLOCK_BYTES, host=_host)
    launcher = partial(OtherServers, target=f"{_MODULE}:{run_server.__name__}")
    took = rebuild(plan, servers=int(servers), kills=int(kills), pace=FAST, launcher=launcher)
    measured = OnLinks(rebuild_s=took.took_s, floor_s=floor.took_s, heard_s=took.heard_s)
    Path(found).write_text(json.dumps(asdict(measured)), encoding="utf-8")


def _apart() -> list[str]:
    """What runs a command in a network namespace of its own."""
    return ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]


def _host(place: int) -> str:
    return f"127.0.1.{place + 1}"


def _limit(bytes_per_s: int, *, places: int) -> None:
    """What addresses of servers and spares receive. Everything else moves freely."""
    _system("ip link set lo up")
    _system("tc qdisc add dev lo root handle 1: htb default 1")
    _system(f"tc class add dev lo parent 1: classid 1:1 htb rate {_UNLIMITED} quantum {_QUANTUM_BYTES}")
    limits = f"rate {8 * bytes_per_s}bit burst {_BURST_BYTES} cburst {_BURST_BYTES} quantum {_QUANTUM_BYTES}"
    for place in range(places):
        number = 100 + place
        _system(f"tc class add dev lo parent 1: classid 1:{number} htb {limits}")
        _system(f"tc qdisc add dev lo parent 1:{number} handle {number}: bfifo limit {_QUEUE_BYTES}")
        _system(f"tc filter add dev lo parent 1: protocol ip u32 match ip dst {_host(place)}/32 flowid 1:{number}")


def _system(command: str) -> None:
    subprocess.run(command.split(), check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
