"""Very many schedules on many cores, with nothing but the standard library.

``python -m tests.cluster.core.soak --first 100000 --count 20000 --processes 16 --protocol`` prints each schedule that
breaks a promise. With ``--rules`` it takes away one rule after another, and prints how many schedules miss it. The exit
status is 1 if a promise was broken, or a rule never missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

from tests.cluster.core.parity_simulation import ParitySimulation
from tests.cluster.core.rules_of_parity import PARITY
from tests.cluster.core.rules_of_protocol import PROTOCOL
from tests.cluster.core.simulation import Simulation

AT_A_TIME = 20  # schedules that a process is given
PARITIES = {"1": (1,), "2": (2,), "both": (1, 2)}
KINDS: dict[str, Callable[..., Simulation]] = {
    "protocol": Simulation,
    "parity 1": partial(ParitySimulation, parity=1),
    "parity 2": partial(ParitySimulation, parity=2),
}


@dataclass(frozen=True)
class Schedule:
    """One simulation."""

    kind: str
    seed: int
    traits: tuple[tuple[str, Any], ...] = ()  # that are not drawn


@dataclass(frozen=True)
class Lack:
    """A schedule without a rule."""

    book: str
    rule: str
    seed: int


@dataclass(frozen=True)
class Outcome:
    """How it ended."""

    schedule: Schedule
    cpu_s: float
    problem: str  # empty: no promise was broken


def run(schedule: Schedule) -> Outcome:
    """One schedule, to its end or to the first broken promise."""
    start_s = time.process_time()
    simulation = KINDS[schedule.kind](schedule.seed, **dict(schedule.traits))
    problem = ""
    try:
        simulation.run()
    except Exception as error:  # an assertion of a state machine, or a key that it lost, is as bad as a broken promise
        problem = f"{type(error).__name__}: {error}; {simulation.traits}"
    return Outcome(schedule, time.process_time() - start_s, problem)


BOOKS = {"parity": PARITY, "protocol": PROTOCOL}


def is_missed(lack: Lack) -> tuple[Lack, bool]:
    """Whether it goes wrong."""
    return lack, BOOKS[lack.book].is_missed(lack.rule, lack.seed)


def take_rules_away(arguments: argparse.Namespace) -> int:
    """How many were never missed."""
    seeds = range(arguments.first, arguments.first + arguments.count)
    lacks = [Lack(name, rule, seed) for name, book in BOOKS.items() for rule in book.rules for seed in seeds]
    missed: dict[tuple[str, str], list[int]] = {(each.book, each.rule): [] for each in lacks}
    with get_context("spawn").Pool(arguments.processes) as pool:
        for lack, is_found in pool.imap_unordered(is_missed, lacks, chunksize=AT_A_TIME):
            missed[lack.book, lack.rule].extend([lack.seed] * is_found)
    for (book, rule), found in missed.items():
        first = f", first in {min(found)}" if found else ""
        print(f"{book}: {rule}: missed in {len(found)} of {len(seeds)}{first}")
    return sum(not found for found in missed.values())


def schedules(arguments: argparse.Namespace) -> list[Schedule]:
    """What the command line asks for: every seed in every kind of simulation."""
    kinds = [f"parity {each}" for each in PARITIES[arguments.parity]]
    kinds.extend(["protocol"] * arguments.protocol)
    traits = () if arguments.faults is None else (("faults", arguments.faults),)
    seeds = range(arguments.first, arguments.first + arguments.count)
    return [Schedule(kind, seed, traits) for seed in seeds for kind in kinds]


def outcomes(wanted: Sequence[Schedule], processes: int) -> Iterator[Outcome]:
    """As they end, on so many processes."""
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(run, wanted, chunksize=AT_A_TIME)


def arguments_of(line: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.core.soak", description=__doc__)
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed (default: %(default)s)")
    parser.add_argument("--count", type=int, default=20_000, metavar="N", help="of seeds (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=1, metavar="P", help="to run them on (default: %(default)s)")
    parser.add_argument(
        "--parity", choices=[*PARITIES], default="both", help="hosts of a stripe (default: %(default)s)"
    )
    parser.add_argument("--faults", type=int, metavar="N", help="of each schedule (default: 0 to 8, drawn)")
    parser.add_argument("--protocol", action="store_true", help="run each seed without parity as well")
    parser.add_argument("--rules", action="store_true", help="take rules away instead")
    return parser.parse_args(line)


def main(line: Sequence[str] | None = None) -> int:
    """Run them all; how many broke a promise decides the exit status."""
    arguments = arguments_of(line)
    if arguments.rules:
        return 1 if take_rules_away(arguments) else 0
    wanted = schedules(arguments)
    failed, cpu_s, longest = 0, 0.0, 0.0
    for outcome in outcomes(wanted, arguments.processes):
        cpu_s, longest = cpu_s + outcome.cpu_s, max(longest, outcome.cpu_s)
        if outcome.problem:
            failed += 1
            print(f"{outcome.schedule.kind}, seed {outcome.schedule.seed}: {outcome.problem}", flush=True)
    mean_ms = 1000 * cpu_s / max(1, len(wanted))
    print(f"{failed} of {len(wanted)} schedules failed; {mean_ms:.0f} ms of CPU each, at most {1000 * longest:.0f}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
