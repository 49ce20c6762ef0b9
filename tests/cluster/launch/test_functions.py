"""Functions by name."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.cluster.launch.functions import import_name, load
from holdfast.errors import ConfigurationError


def build() -> int:
    return 1


def decorated(function):
    @functools.wraps(function)
    def around():
        return function() + 1

    return around


@decorated
def build_more() -> int:
    return 1


class Model:
    @staticmethod
    def build() -> int:
        return 3

    @classmethod
    def default(cls) -> type:
        return cls

    def make(self) -> None: ...


@pytest.mark.parametrize(
    "function", [build, build_more, Model, Model.build, Model.default], ids=lambda each: each.__qualname__
)
def test_a_function_comes_back_by_its_name(function) -> None:
    assert load(import_name(function)) == function


def test_a_name_is_readable() -> None:
    assert import_name(build) == f"{__name__}:build"
    assert import_name(Model.build) == f"{__name__}:Model.build"


@pytest.mark.parametrize(
    "function",
    [lambda: 1, functools.partial(build), Model().make, Model()],
    ids=["lambda", "partial", "bound", "object"],
)
def test_what_has_no_name_is_refused_with_a_remedy(function) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be passed to other processes.*top level"):
        import_name(function)


def test_a_local_function_is_refused() -> None:
    def local() -> None: ...

    with pytest.raises(ConfigurationError, match=r"local.*only inside of this process"):
        import_name(local)


def test_a_function_that_was_replaced_in_its_module_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    original = build
    monkeypatch.setitem(globals(), "build", lambda: 2)
    with pytest.raises(ConfigurationError, match="build is something else"):
        import_name(original)


def test_a_name_without_a_function_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="nothing"):
        load(f"{__name__}:nothing")


def test_a_script_is_loaded_once(tmp_path: Path) -> None:
    script = tmp_path / "train-all.py"
    script.write_text("made = object()\ndef build(): return made\ndef train(): return made\n")
    assert load(f"{script}:build")() is load(f"{script}:train")()
    del sys.modules["__mp_main__"]


def test_a_script_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"gone\.py is not here"):
        load(f"{tmp_path}/gone.py:build")


def test_a_function_typed_at_a_prompt_is_refused() -> None:
    code = "from holdfast.cluster.launch.functions import import_name\ndef train(): ...\nimport_name(train)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "train cannot be passed to other processes: this session has no file" in ended.stderr


def test_a_script_that_starts_its_job_where_it_is_imported_is_told_how_to_write_it(tmp_path: Path) -> None:
    script = tmp_path / "train-all.py"
    script.write_text(
        "import holdfast as hf\n"
        "def build(): ...\n"
        "def train(worker): ...\n"
        "hf.Cluster('memory://', model=hf.Never, train=hf.Never, servers=1, workers=1, optimizer=hf.SGD(0.1)).run()\n"
    )
    with pytest.raises(ConfigurationError, match="__main__"):
        load(f"{script}:train")


@pytest.mark.parametrize("wrong", [{"ahead": -1}, {"spares": -1}, {"silence_s": 0.0}, {"on_nan": "ignore"}])
def test_settings_that_make_no_sense_are_refused_before_anything_starts(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        hf.Cluster("memory://", model=hf.Never, train=hf.Never, servers=1, workers=1, optimizer=hf.SGD(0.1), **wrong)
