"""All optimizers of a training loop: what a checkpoint stores of them, and how it maps to those that run now.

A parameter's state belongs to its name and to the kind of optimizer that made it. So it is found again if an optimizer
was split, merged or moved in the list; if the kind changed, the state starts fresh, with a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.training.optimizer_state import NamedOptimizer
from holdfast.format.tree import encode_tree

StoredOptimizers = Sequence[Mapping[str, Any]]
_LISTED = 8  # names in one message


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnState:
    """What an optimizer's own state dict held in a checkpoint."""

    optimizer: NamedOptimizer
    stored: Any

    def load(self) -> str | None:
        """Hand it to the optimizer; why that refuses, if it does."""
        try:
            self.optimizer.load_own(self.stored)
        except Exception as error:  # whatever a user's load_state_dict raises
            return f"{self.optimizer.kind} rejected its state: {error!r}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredOptimizers:
    """What a restore recovered of the optimizers' state."""

    parameters: frozenset[int]  # identities of those whose state is the checkpoint's
    left: tuple[str, ...]  # what was not restored, and why
    unfinished: tuple[OwnState, ...]  # to be loaded when the tables' rows are in their places


@dataclass(frozen=True, slots=True, kw_only=True)
class _Home:
    """Where a checkpoint holds the state of a parameter."""

    optimizer: int
    group: int


class Optimizers:
    """The optimizers of one loop, in the order that they were given in."""

    def __init__(self, optimizers: Sequence[NamedOptimizer]) -> None:
        self._optimizers = tuple(optimizers)

    def capture(self) -> list[dict[str, Any]]:
        """Their state as trees of live tensors."""
        return [optimizer.capture() for optimizer in self._optimizers]

    def problems(self, stored: StoredOptimizers) -> list[str]:
        """Why they are not those of the checkpoint; empty if they are."""
        if not self._optimizers:
            return []
        found = [
            problem
            for optimizer, saved in zip(self._optimizers, stored, strict=False)
            for problem in optimizer.problems(saved)
        ]
        known = len(stored)
        for index, optimizer in enumerate(self._optimizers[known:], known):
            found.append(f"optimizer {index} ({optimizer.kind}) is not in the checkpoint")
        for index, saved in enumerate(stored[len(self._optimizers) :], len(self._optimizers)):
            found.append(f"optimizer {index} ({saved['kind']}) is only in the checkpoint")
        return found

    def homeless(self, stored: StoredOptimizers, *, some: bool = False) -> list[str]:
        """Parameters, wherever they are held, without stored state of their kind of optimizer; and the reverse.

        ``some``: these are not all optimizers, and others may be missing.
        """
        if not self._optimizers:
            return []
        matches = [self._match(index, stored, frozenset()) for index in range(len(self._optimizers))]
        live = {name for optimizer in self._optimizers for name in optimizer.parameters()}
        known = [_only(saved, live) for saved in stored] if some else stored
        return list(self._fresh(known, matches))

    def restore(self, stored: StoredOptimizers, *, skip: Set[str]) -> RestoredOptimizers:
        """Continue from ``stored`` as far as it fits; parameters in ``skip`` keep their state."""
        matches = [self._match(index, stored, skip) for index in range(len(self._optimizers))]
        for match in matches:
            match.restore(alone=not any(match.sources & other.sources for other in matches if other is not match))
        return RestoredOptimizers(
            parameters=frozenset(identity for match in matches for identity in match.parameters),
            left=tuple(self._left(stored, matches)),
            unfinished=tuple(match.own for match in matches if match.own is not None),
        )

    def _match(self, index: int, stored: StoredOptimizers, skip: Set[str]) -> _Match:
        live = self._optimizers[index]
        parameters = live.parameters()
        homes = {
            name: _Home(optimizer=number, group=group_number)
            for number, saved in enumerate(stored)
            if saved["kind"] == live.kind
            for group_number, group in enumerate(saved["groups"])
            for name in group["parameters"]
            if name in parameters and name not in skip and live.fits(saved, name, parameters[name].parameter)
        }
        return _Match(live, index, stored, homes)

    def _left(self, stored: StoredOptimizers, matches: Sequence[_Match]) -> Iterator[str]:
        if not (stored and self._optimizers):  # weights alone were stored or are wanted, and that was said
            return
        yield from self._fresh(stored, matches)
        for match in matches:
            yield from match.left

    def _fresh(self, stored: StoredOptimizers, matches: Sequence[_Match]) -> Iterator[str]:
        """Parameters without stored state, and stored state without a parameter."""
        kinds = {name: saved["kind"] for saved in stored for group in saved["groups"] for name in group["parameters"]}
        reasons: dict[str, list[str]] = {}
        for match in matches:
            for name in match.fresh_names:
                reasons.setdefault(_why_fresh(kinds.get(name), match.kind), []).append(name)
        live = {name for optimizer in self._optimizers for name in optimizer.parameters()}
        if gone := [name for name in kinds if name not in live]:
            reasons["no longer in any optimizer"] = gone
        for reason, names in reasons.items():
            yield f"optimizer state of {list_names(names)} ({reason})"


class _Match:
    """One live optimizer, and where a checkpoint holds the state of its parameters."""

    def __init__(self, live: NamedOptimizer, index: int, stored: StoredOptimizers, homes: Mapping[str, _Home]) -> None:
        self._live = live
        self._held = live.parameters()
        self._stored = stored
        self._homes = homes
        same_place = index < len(stored) and stored[index]["kind"] == live.kind
        self._same_place = index if same_place else None
        self.sources = frozenset(home.optimizer for home in homes.values())
        self.left: list[str] = []
        self.own: OwnState | None = None

    @property
    def kind(self) -> str:
        return self._live.kind

    @property
    def fresh_names(self) -> list[str]:
        """Parameters whose state is not restored."""
        return [name for name in self._held if name not in self._homes]

    @property
    def parameters(self) -> set[int]:
        """The identities of those whose state is restored."""
        return {id(self._held[name].parameter) for name in self._homes}

    def restore(self, *, alone: bool) -> None:
        """Write it; ``alone``: no other optimizer takes state from where this one does."""
        for number in range(len(self._live.optimizer.param_groups)):
            self._restore_options(number)
        for name, home in self._homes.items():
            self._live.restore_state(self._held[name], self._stored[home.optimizer]["state"][name])
        if alone and len(self.sources) == 1:
            self._restore_common(*(self._stored[source] for source in self.sources))
        elif any(_has_common_state(self._stored[source]) for source in self.sources):
            self.left.append(f"what {self.kind} keeps for all its parameters (it was split or merged)")

    def _restore_common(self, saved: Mapping[str, Any]) -> None:
        """What belongs to the optimizer as a whole."""
        self._live.restore_shared(saved["shared"])
        self._live.restore_inner(saved["inner"], self._homes.keys())
        if saved["own"] is not None:
            self.own = OwnState(optimizer=self._live, stored=saved["own"])

    def _restore_options(self, number: int) -> None:
        """A group takes the options of the one that its parameters were in, if they were in one or in equal ones."""
        homes = {home for name, home in self._homes.items() if self._held[name].group == number}
        if not homes and self._same_place is not None and number < len(self._stored[self._same_place]["groups"]):
            homes = {_Home(optimizer=self._same_place, group=number)}
        options = [self._stored[home.optimizer]["groups"][home.group]["options"] for home in homes]
        if options and all(_encoded(other) == _encoded(options[0]) for other in options[1:]):
            self._live.restore_options(number, options[0])
        elif options:
            self.left.append(
                f"options of {self.kind}, group {number} (its parameters came from groups with different options)"
            )


def _only(saved: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    """The groups of a stored optimizer with these of their parameters."""
    held = ([name for name in group["parameters"] if name in names] for group in saved["groups"])
    return {"kind": saved["kind"], "groups": [{"parameters": parameters} for parameters in held]}


def _has_common_state(saved: Mapping[str, Any]) -> bool:
    return bool(saved["shared"] or saved["inner"] or saved["own"] is not None)


def _why_fresh(before: str | None, now: str) -> str:
    if before is None:
        return f"the checkpoint has none for {now}"
    return f"saved by {before}, now {now}" if before != now else "their shapes or roles differ"


def _encoded(options: Mapping[str, Any]) -> object:
    tree = encode_tree(dict(options))
    return tree.skeleton, [tensor.tolist() for tensor in tree.tensors]


def list_names(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
