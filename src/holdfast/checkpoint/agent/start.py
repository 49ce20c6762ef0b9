"""Starts the agent's interpreter with a module path that nothing near the trainer can shadow.

The agent holds the store's credentials. A ``queue.py`` in the trainer's working directory, next to its script, in
PYTHONPATH or next to our own package must not be mistaken for the standard library's. So the interpreter starts with
only its own path; Holdfast is then loaded from where the trainer found it, ignoring its neighbours; and the directories
in which the trainer found the packages that an agent uses come last.

The agent runs this as a file, before anything of Holdfast can be imported: standard library only.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

_PACKAGES = ("numpy", "numba", "llvmlite", "obstore", "typing_extensions")  # what an agent imports, at most
_MODULE = "holdfast.checkpoint.agent.process"


def command(arguments: Sequence[str]) -> list[str]:
    """What starts an agent's process: ``-P`` keeps this file's own directory off its path."""
    return [sys.executable, "-P", __file__, json.dumps(_found_in(_PACKAGES)), *arguments]


def environment(inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The trainer's environment without what would come before the standard library."""
    return {name: value for name, value in inherited.items() if name not in ("PYTHONPATH", "PYTHONSTARTUP")}


def _found_in(packages: Sequence[str]) -> list[str]:
    """The directories in which this process finds these packages. A single file of such a name is not one of them."""
    found = []
    for name in packages:
        spec = _find(name)
        if spec is not None and spec.origin and spec.submodule_search_locations:
            found.append(str(Path(spec.origin).absolute().parents[1]))
    return list(dict.fromkeys(found))


def _find(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):  # ValueError: somebody put a module without a spec there
        return None


def _load_holdfast() -> None:
    """Import our package from its own directory, which need not be on the path."""
    directory = Path(__file__).parents[2]
    spec = importlib.util.spec_from_file_location(
        "holdfast", directory / "__init__.py", submodule_search_locations=[str(directory)]
    )
    assert spec is not None and spec.loader is not None  # it is a file with Python's ending
    package = importlib.util.module_from_spec(spec)
    sys.modules["holdfast"] = package
    spec.loader.exec_module(package)


def main(directories: str, *arguments: str) -> None:
    """Serve as an agent; ``directories`` are those that come last on the path."""
    sys.path.extend(directory for directory in json.loads(directories) if directory not in sys.path)
    _load_holdfast()
    importlib.import_module(_MODULE).main(list(arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
