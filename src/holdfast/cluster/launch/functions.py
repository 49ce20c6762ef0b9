"""Functions by name: what one process passes to another so that both run the same code.

A name is ``module:function``. A function of the script that was started has no module to import: ``__main__`` is
something else in every process. It is named by the module that its file can be imported as, or by its file, as in
``./train-all.py:function``: relative to the working directory if it is there, because that travels to other machines.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.errors import ConfigurationError

_SCRIPT = "__mp_main__"  # what multiprocessing calls a script that is not run, but imported
_is_loading = False  # a user's module is being imported


def import_name(function: Callable[..., Any]) -> str:
    """The name by which other processes load a function; refuses what has none.

    Args:
        function: A function or class at the top level of a module or of the script.
    """
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module is None or path is None:
        raise _refusal(function, "it is an object, not a function")
    if "<lambda>" in path or "<locals>" in path:
        raise _refusal(function, "it exists only inside of this process")
    if _find(sys.modules.get(module), path) != function:
        raise _refusal(function, f"{module}.{path} is something else")
    return f"{_main_name(function) if module == '__main__' else module}:{path}"


def load(name: str) -> Callable[..., Any]:
    """The function of this name, imported if need be.

    Args:
        name: As ``import_name`` gives it.
    """
    module_name, _, path = name.rpartition(":")
    with _loading():
        module = _load_script(Path(module_name)) if "/" in module_name else importlib.import_module(module_name)
    function = _find(module, path)
    if not callable(function):
        raise ConfigurationError(f"{name} is not a function: define {path} at the top level of {module_name}")
    return function  # type: ignore[no-any-return]


def require_not_loading(what: str) -> None:
    """Refuse what a script does where it is only imported: every process that did it would start processes again."""
    if _is_loading:
        raise ConfigurationError(
            f"{what} was called while a process of the job imported the script. "
            'Put the call under `if __name__ == "__main__":`'
        )


@contextmanager
def _loading() -> Iterator[None]:
    global _is_loading
    before, _is_loading = _is_loading, True
    try:
        yield
    finally:
        _is_loading = before


def _find(module: ModuleType | None, path: str) -> Any:
    return reduce(lambda found, name: getattr(found, name, None), path.split("."), module)


def _main_name(function: Callable[..., Any]) -> str:
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":  # python -m package.module
        return str(spec.name)
    if getattr(main, "__file__", None) is None:
        raise _refusal(function, "this session has no file that others could import")
    file = Path(str(main.__file__)).resolve()
    if _is_found_as(file.stem, file):
        return file.stem
    directory = Path.cwd()
    return f"./{file.relative_to(directory)}" if file.is_relative_to(directory) else str(file)


def _is_found_as(module: str, file: Path) -> bool:
    """Whether importing this name gives this file, and not another one that comes first on the path."""
    if not module.isidentifier() or module == "__main__":
        return False
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # ValueError: a module of this name was put there by hand
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == file


def _load_script(path: Path) -> ModuleType:
    file = path.resolve()
    loaded = sys.modules.get(_SCRIPT)
    if loaded is not None and getattr(loaded, "__file__", None) == str(file):
        return loaded
    spec = importlib.util.spec_from_file_location(_SCRIPT, file)
    if spec is None or spec.loader is None or not file.exists():
        raise ConfigurationError(f"{file} is not here: start the script from a directory that holds it")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_SCRIPT] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[_SCRIPT]
        raise
    return module


def _refusal(function: Callable[..., Any], why: str) -> ConfigurationError:
    shown = getattr(function, "__qualname__", None) or repr(function)
    return ConfigurationError(
        f"{shown} cannot be passed to other processes: {why}. "
        "Define it with `def` at the top level of a module or script, and pass it by name"
    )
