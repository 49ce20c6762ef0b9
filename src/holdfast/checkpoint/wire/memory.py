"""How much memory is available: on the machine, and in the container, if any."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROCESSES = Path("/proc")
_CONTROL_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """Where a version of the kernel's control groups keeps what we ask for."""

    controller: str  # in /proc/self/cgroup
    root: str
    limit: str
    used: str
    cache: str  # in memory.stat: files that the kernel may drop


_VERSIONS = (
    _Version(controller="", root="", limit="memory.max", used="memory.current", cache="inactive_file"),
    _Version(
        controller="memory",
        root="memory",
        limit="memory.limit_in_bytes",
        used="memory.usage_in_bytes",
        cache="total_inactive_file",
    ),
)


def available_bytes(processes: Path = _PROCESSES, control_groups: Path = _CONTROL_GROUPS) -> int | None:
    """The kernel's estimate, or less where a container's limit is nearer; None where neither is known.

    What exceeds a container's limit is not refused: the kernel kills somebody.
    """
    known = [_of_machine(processes), *_of_containers(processes, control_groups)]
    return min((found for found in known if found is not None), default=None)


def _of_machine(processes: Path) -> int | None:
    found = _numbers(processes / "meminfo").get("MemAvailable:")
    return None if found is None else found * 1024


def _of_containers(processes: Path, control_groups: Path) -> Iterator[int | None]:
    """What the limits of our control group, and of those around it, leave."""
    for line in _text(processes / "self" / "cgroup").splitlines():
        _, _, membership = line.partition(":")
        controllers, _, path = membership.partition(":")
        for version in _VERSIONS:
            if version.controller in controllers.split(","):
                root = control_groups / version.root
                own = root / path.lstrip("/")  # not there from inside of some containers; the root is then our own
                yield from (_left(group, version) for group in (own, *own.parents) if group.is_relative_to(root))


def _left(group: Path, version: _Version) -> int | None:
    """A group's limit less what it uses; what the kernel may drop from its cache counts as free."""
    limit, used = _text(group / version.limit).strip(), _text(group / version.used).strip()
    if not (limit.isdigit() and used.isdigit()):  # "max", or no limit can be set here
        return None
    return max(0, int(limit) - int(used) + _numbers(group / "memory.stat").get(version.cache, 0))


def _numbers(path: Path) -> dict[str, int]:
    """The first number of each line, by the word before it."""
    lines = (line.split() for line in _text(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
