from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.checkpoint.wire.memory import available_bytes

MiB = 2**20


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with 1000 MiB available and a process in the control group ``/jobs/mine``."""
    write(
        tmp_path / "proc/meminfo", f"MemTotal: {4000 * 1024} kB\nMemAvailable: {1000 * 1024} kB\nHugePages_Total: 0\n"
    )
    write(tmp_path / "proc/self/cgroup", "0::/jobs/mine\n")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def limit(machine: Path, group: str, *, limit: str, used: int, cache: int = 0) -> None:
    write(machine / "cgroup" / group / "memory.max", f"{limit}\n")
    write(machine / "cgroup" / group / "memory.current", f"{used}\n")
    write(machine / "cgroup" / group / "memory.stat", f"anon {used - cache}\ninactive_file {cache}\n")


def available(machine: Path) -> int | None:
    return available_bytes(machine / "proc", machine / "cgroup")


def test_without_a_limit_the_machine_decides(machine: Path) -> None:
    assert available(machine) == 1000 * MiB
    limit(machine, "jobs/mine", limit="max", used=300 * MiB)
    assert available(machine) == 1000 * MiB


def test_a_containers_limit_counts_less_what_it_uses(machine: Path) -> None:
    limit(machine, "jobs/mine", limit=str(800 * MiB), used=300 * MiB)
    assert available(machine) == 500 * MiB


def test_what_the_kernel_may_drop_from_its_cache_is_available(machine: Path) -> None:
    limit(machine, "jobs/mine", limit=str(800 * MiB), used=790 * MiB, cache=400 * MiB)
    assert available(machine) == 410 * MiB


def test_a_limit_around_the_container_counts_too(machine: Path) -> None:
    limit(machine, "jobs/mine", limit=str(800 * MiB), used=100 * MiB)
    limit(machine, "jobs", limit=str(900 * MiB), used=850 * MiB)
    assert available(machine) == 50 * MiB


def test_inside_a_container_its_own_group_is_the_root(machine: Path) -> None:
    write(machine / "proc/self/cgroup", "0::/\n")
    limit(machine, "", limit=str(600 * MiB), used=100 * MiB)
    assert available(machine) == 500 * MiB


def test_a_limit_above_what_the_machine_has_changes_nothing(machine: Path) -> None:
    limit(machine, "jobs/mine", limit=str(10**15), used=0)
    assert available(machine) == 1000 * MiB


def test_where_nothing_is_told_nothing_is_known(tmp_path: Path) -> None:
    assert available(tmp_path) is None


def test_the_older_control_groups_are_understood(machine: Path) -> None:
    write(machine / "proc/self/cgroup", "9:cpu:/\n4:memory:/seen/from/outside\n0::/\n")
    write(machine / "cgroup/memory/memory.limit_in_bytes", f"{700 * MiB}\n")
    write(machine / "cgroup/memory/memory.usage_in_bytes", f"{500 * MiB}\n")
    write(machine / "cgroup/memory/memory.stat", f"inactive_file 0\ntotal_inactive_file {100 * MiB}\n")
    assert available(machine) == 300 * MiB
