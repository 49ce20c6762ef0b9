"""Where processes run: a placement group with room for each, reserved for the life of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

from holdfast.cluster.core.members import Role
from holdfast.errors import RunError

Needs: TypeAlias = Mapping[str, Any]
"""What one process needs, in the words of Ray's options for actors: num_cpus, num_gpus, memory, resources."""


def bundle(needs: Needs) -> dict[str, float]:
    """The same as amounts of named resources."""
    amounts = {
        "CPU": needs.get("num_cpus", 1),
        "GPU": needs.get("num_gpus", 0),
        "memory": needs.get("memory", 0),
        **needs.get("resources", {}),
    }
    return {name: amount for name, amount in amounts.items() if amount}


@dataclass(frozen=True, slots=True)
class Place:
    """Room for one process."""

    role: Role
    index: int  # of its bundle


class Places:
    """The room of a job. A replacement runs where the dead one ran, or where Ray moved that room to.

    The group outlives whoever made it, as its processes do: removing it would kill them.
    """

    def __init__(self, ray: ModuleType, name: str, needs: Mapping[Role, tuple[int, Needs]], strategy: str) -> None:
        self._ray = ray
        self._needs = {role: each for role, (_, each) in needs.items()}
        roles = [role for role, (count, _) in needs.items() for _ in range(count)]
        self._free = [Place(role, index) for index, role in enumerate(roles)]
        bundles = [bundle(self._needs[role]) for role in roles]
        self.group: Any = None
        if bundles:
            self.group = ray.util.placement_group(bundles, strategy=strategy, name=name, lifetime="detached")
        self._strategy = strategy

    def wait(self, timeout_s: float) -> None:
        """Wait until there is room for everyone."""
        if self.group is None or self.group.wait(timeout_s):
            return
        asked = _total(self.group.bundle_specs)
        raise RunError(
            f"Ray found no room for this job within {timeout_s:g} s: {self._strategy} of {asked}, in a cluster of "
            f"{_total([self._ray.cluster_resources()])}. Start fewer processes, ask for less in `resources`, "
            "choose another `placement`, or add machines"
        )

    def nodes(self, role: Role, count: int) -> list[str]:
        """The machines that have room for the next so many processes, in the order in which they take it."""
        nodes = self._ray.util.placement_group_table(self.group)["bundles_to_node_id"]
        return [nodes[each.index] for each in self._free if each.role is role][:count]

    def memory(self) -> dict[str, int]:
        """By machine, the memory that Ray has for tasks and actors, where it says so."""
        nodes = {node["NodeID"]: node["Resources"] for node in self._ray.nodes() if node["Alive"]}
        return {name: int(found["memory"]) for name, found in nodes.items() if "memory" in found}

    def take(self, role: Role) -> Place | None:
        """Room for a process; None where all of it is taken, and Ray has to find some."""
        place = next((each for each in self._free if each.role is role), None)
        if place is not None:
            self._free.remove(place)
        return place

    def lacks(self, role: Role, count: int) -> str:
        """What Ray has too little of for so many more processes; empty: nothing."""
        more = count - sum(each.role is role for each in self._free)
        if more <= 0:
            return ""
        asked, there = bundle(self._needs[role]), self._ray.available_resources()
        short = sorted(name for name, amount in asked.items() if more * amount > there.get(name, 0))
        return f"Ray has too little {', '.join(short)} for {more} more: add machines, or ask for less" if short else ""

    def give_back(self, place: Place | None) -> None:
        """Whoever ran there is dead."""
        if place is not None:
            self._free.append(place)

    def options(self, role: Role, place: Place | None) -> dict[str, Any]:
        """What Ray has to know to start an actor there."""
        options = {"num_cpus": 1, **self._needs[role]}
        if place is None:
            return {**options, "scheduling_strategy": "SPREAD"}
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            self.group, placement_group_bundle_index=place.index
        )
        return {**options, "scheduling_strategy": strategy}

    def close(self) -> None:
        """Give everything back to the cluster."""
        if self.group is not None:
            self._ray.util.remove_placement_group(self.group)
            self.group = None


def _total(bundles: list[dict[str, float]]) -> str:
    names = sorted({name for each in bundles for name in each if ":" not in name})
    return ", ".join(f"{sum(each.get(name, 0) for each in bundles):g} {name}" for name in names)
