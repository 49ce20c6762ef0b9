"""``help()`` of everything public: each class, function, method and argument is explained."""

from __future__ import annotations

import enum
import inspect
from dataclasses import is_dataclass
from typing import Any, get_args

import pytest

import holdfast as hf
from holdfast import events
from holdfast.checkpoint.follow.path import Reload
from holdfast.runtime import Runtime
from holdfast.testing.runtime import with_runtime
from holdfast.types import ColumnSpec, Doubt, Kind
from tests.docs.docstrings import arguments, explained, handed_out, members

CLASSES = [name for name in hf.__all__ if isinstance(getattr(hf, name), type)]


@pytest.mark.parametrize("name", hf.__all__)
def test_every_public_name_explains_itself_and_its_arguments(name: str) -> None:
    item: Any = getattr(hf, name)
    assert inspect.getdoc(item), f"hf.{name} has no docstring"
    assert "(" not in (inspect.getdoc(item) or "").partition("\n")[0][: len(name) + 1], f"hf.{name}: a generated one"
    assert explained(item) == arguments(item), f"hf.{name}: explain each argument under 'Args:', in their order"


@pytest.mark.parametrize("name", CLASSES)
def test_every_method_of_a_public_class_explains_itself_and_its_arguments(name: str) -> None:
    for member, value in members(getattr(hf, name)):
        assert inspect.getdoc(value), f"hf.{name}.{member} has no docstring"
        if not isinstance(value, property):
            assert explained(value) == arguments(value), f"hf.{name}.{member}: explain each argument under 'Args:'"


RETURNED = handed_out()
HANDED_OUT = [*get_args(events.TrainingEvent), ColumnSpec, *(each for each in RETURNED if is_dataclass(each))]


@pytest.mark.parametrize("kind", HANDED_OUT, ids=lambda kind: kind.__name__)
def test_every_event_and_value_in_the_reference_explains_its_fields(kind: type) -> None:
    assert explained(kind) == arguments(kind)


@pytest.mark.parametrize("choices", [hf.Overlap, Kind, Doubt, Reload, events.Happening], ids=lambda kind: kind.__name__)
def test_every_choice_of_a_public_enum_is_explained(choices: type[enum.Enum]) -> None:
    assert explained(choices, "Attributes") == [each.name for each in choices]


@pytest.mark.parametrize("name", hf.__all__)
def test_no_public_signature_takes_a_runtime(name: str) -> None:
    item: Any = getattr(hf, name)
    callables = [item, *(value for _, value in members(item))] if isinstance(item, type) else [item]
    assert all("runtime" not in arguments(each) for each in callables if callable(each))


@pytest.mark.parametrize("kind", [hf.Checkpointer, hf.Follower, hf.Run])
def test_a_test_can_put_another_runtime_under_a_public_class(kind: type) -> None:
    elsewhere = Runtime(wall_s=lambda: 1.0)
    assert with_runtime(kind, elsewhere)._runtime is elsewhere
    assert kind._runtime is not elsewhere


def test_a_class_without_a_runtime_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="KeepAll has no runtime"):
        with_runtime(hf.KeepAll, Runtime())
