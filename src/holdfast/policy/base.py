"""What policies share: each is a plain value that can be stored and sent to another process by a registered name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Generic, Self, TypeVar

from holdfast.errors import ConfigurationError
from holdfast.policy.arguments import require

P = TypeVar("P", bound="Policy")

_NAME_KEY = "policy"
_class_of: dict[str, type[Policy]] = {}
_name_of: dict[type[Policy], str] = {}


class Policy:
    """A decision as a value: a frozen dataclass whose fields are numbers, text, or other policies.

    A policy decides from its context and nothing else, so the trainer, the agent, the planner and the simulator reach
    the same decision.
    """

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values; ``from_dict`` returns an equal policy."""
        if (name := _name_of.get(type(self))) is None:
            raise ConfigurationError(
                f"{type(self).__name__} has no registered name, so it cannot be stored or sent to the agent: "
                f'decorate the class with @registered("a_name")'
            )
        return {_NAME_KEY: name, **{field: _to_plain(getattr(self, field)) for field in _field_names(type(self))}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The policy that ``to_dict`` described; it must be an instance of the class this is called on.

        Args:
            data: What ``to_dict`` returned.
        """
        policy = _build(data)
        if not isinstance(policy, cls):
            raise ConfigurationError(f"{policy!r} is not a {cls.__name__}")
        return policy


def registered(name: str) -> Callable[[type[P]], type[P]]:
    """Class decorator (above ``@dataclass``): the permanent ``name`` of this class in stored policies.

    Args:
        name: A unique name; stored runs refer to it.
    """

    def register(policy_class: type[P]) -> type[P]:
        if name in _class_of:
            raise ConfigurationError(f"the policy name {name!r} is taken by {_class_of[name].__name__}")
        _class_of[name] = policy_class
        _name_of[policy_class] = name
        return policy_class

    return register


@dataclass(frozen=True, slots=True, repr=False)
class Composite(Policy, Generic[P]):
    """Policies of one family, joined by an operator."""

    FAMILY: ClassVar[type[Policy]]
    SYMBOL: ClassVar[str]

    parts: tuple[P, ...]

    def __post_init__(self) -> None:
        fits = isinstance(self.parts, tuple) and all(isinstance(part, self.FAMILY) for part in self.parts)
        expected = f"a tuple of at least two {self.FAMILY.__name__}"
        require(fits and len(self.parts) >= 2, self, "parts", expected, self.parts)

    def __repr__(self) -> str:
        """The expression a user would write."""
        return f" {self.SYMBOL} ".join(
            f"({part!r})" if isinstance(part, Composite) else repr(part) for part in self.parts
        )


def flattened(composite: type[Composite[P]], *parts: P) -> tuple[P, ...]:
    """The parts, with nested composites of the same kind flattened: grouping does not matter."""
    nested = [part.parts if isinstance(part, composite) else (part,) for part in parts]
    return tuple(part for group in nested for part in group)


def _field_names(policy_class: type[Policy]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(policy_class))  # type: ignore[arg-type]  # every one is a dataclass


def _to_plain(value: object) -> object:
    if isinstance(value, Policy):
        return value.to_dict()
    return [_to_plain(item) for item in value] if isinstance(value, tuple) else value


def _from_plain(value: object) -> object:
    if isinstance(value, Mapping):
        return _build(value)
    return tuple(_from_plain(item) for item in value) if isinstance(value, list | tuple) else value


def _build(data: Mapping[str, Any]) -> Policy:
    if not isinstance(data, Mapping) or _NAME_KEY not in data:
        raise ConfigurationError(f"a stored policy is a mapping with the key {_NAME_KEY!r}, got {data!r}")
    name = data[_NAME_KEY]
    policy_class = _class_of.get(name) if isinstance(name, str) else None
    if policy_class is None:
        known = ", ".join(sorted(_class_of))
        raise ConfigurationError(
            f"unknown policy {name!r} (known: {known}); if it is your own, import its module first"
        )
    values = {field: _from_plain(value) for field, value in data.items() if field != _NAME_KEY}
    _check_fields(name, policy_class, values)
    return policy_class(**values)


def _check_fields(name: str, policy_class: type[Policy], values: Mapping[str, object]) -> None:
    known = fields(policy_class)  # type: ignore[arg-type]
    required = {field.name for field in known if field.default is MISSING and field.default_factory is MISSING}
    if missing := sorted(required - values.keys()):
        raise ConfigurationError(f"the stored policy {name!r} lacks {', '.join(missing)}")
    if unknown := sorted(values.keys() - {field.name for field in known}):
        raise ConfigurationError(f"the stored policy {name!r} has unknown parameters: {', '.join(unknown)}")
