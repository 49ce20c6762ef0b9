"""What ``optimizer.step`` does to the tables: derived from the gradients it uses, and checked after the step."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from holdfast.checkpoint.track.notices import Notices
from holdfast.checkpoint.track.row_local import ANY_CHANGES, in_place_changes, restless_rows, skips, why_not_row_local
from holdfast.checkpoint.track.table_watch import TableWatch
from holdfast.checkpoint.training.dtensors import is_dtensor, local_of
from holdfast.checkpoint.training.held_objects import are_same, held_objects, shows_others
from holdfast.checkpoint.training.own_state import as_ours
from holdfast.checkpoint.training.tables import holders
from holdfast.checkpoint.training.wrappers import inner_optimizers
from holdfast.errors import ConfigurationError, ModelMismatch

_EDITED = (
    "it was changed outside of optimizer.step() (in place, by load_state_dict, or by max_norm in a functional call); "
    "to get deltas, edit through .data and name the rows with mark()"
)
_HOOKED = (
    "a hook changed it or its gradient during optimizer.step(); "
    "to get deltas, change gradients before the step and nothing after it"
)
_NOT_ROW_LOCAL = "hf.RowLocal was declared, but a step moved rows without a gradient; remove the declaration"
_OTHERWISE = "its gradient is divided over the ranks in another way than its rows; redistribute it to get deltas"
_TRIAL_STEPS = 8  # at the beginning, in which a closer look may wait for the device
_CAPTURED = "its step was captured in a CUDA graph, whose replay runs no hooks; step without graphs to get deltas"


class Steps:
    """Hooks into the steps of all optimizers of the process. They wait for no device."""

    def __init__(
        self,
        watches: Sequence[TableWatch],
        optimizers: Sequence[Optimizer],
        notices: Notices,
        *,
        row_local: Sequence[Optimizer],
        names: Mapping[int, str],
        check: Callable[[Optimizer], None],
    ) -> None:
        self.count = 0  # of the optimizers given
        self.count_of = {id(optimizer): 0 for optimizer in optimizers}
        self.ignored = False  # while set, nobody looks
        self._watches = tuple(watches)
        self._optimizers = tuple(optimizers)
        self._notices = notices
        self._names = names
        self._check = check
        self._unchecked = {id(optimizer) for optimizer in optimizers}
        self._declared = {id(optimizer): _TRIAL_STEPS for optimizer in row_local}  # steps still to be checked
        self._hint_steps = _TRIAL_STEPS  # in which sparse gradients of other parameters are looked for
        self._by_parameter = {id(watch.table.optimized): watch for watch in watches}
        self._by_optimizer = self._group_by_optimizer()
        self._holders = _holders_of_inner(optimizers)
        self._followed: list[Any] | None = None  # what optimizers held when they were looked through last
        self._stepping: Optimizer | None = None  # whose own step, not that of one inside, is under way

    def install(self) -> list[RemovableHandle]:
        """Begin to look. The hooks do not keep this object alive."""
        # Hooks on all optimizers run first before a step and last after it, and see those that nobody told us about.
        handles = [
            register_optimizer_step_pre_hook(_weak(self._before_step)),
            register_optimizer_step_post_hook(_weak(self._after_step)),
        ]
        for optimizer in self._optimizers:
            handles.append(optimizer.register_load_state_dict_post_hook(as_ours(_weak(self._after_load))))
        return handles

    def follow_moved_parameters(self) -> None:
        """A table may have joined an optimizer since; one that left its optimizer lost its slots: ModelMismatch."""
        objects = held_objects(self._optimizers)
        if self._followed is not None and are_same(objects, self._followed):
            return
        self._followed = None
        held = holders(self._optimizers)
        for watch in self._watches:
            table = watch.table
            now = held.get(id(table.optimized), ())
            if len(now) > 1:
                raise ConfigurationError(f"table {table.name!r} is in two optimizers; keep it in only one")
            if table.optimizer is not None and not now:
                raise ModelMismatch(f"table {table.name!r} is no longer in the optimizer it started in")
            table.optimizer = now[0] if now else None  # other slots show in the table's columns or fingerprint
        self._by_optimizer = self._group_by_optimizer()
        self._holders = _holders_of_inner(self._optimizers)
        self._followed = objects if shows_others(self._optimizers) else None

    def notice_edit(self, watch: TableWatch) -> None:
        """Remember to warn about an edit, unless training has yet to start: until then loading weights is no news."""
        if self.count:
            self._notices.add(watch.table.name, _EDITED)

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self.ignored:
            return None
        holder = self._holders.get(id(optimizer), optimizer)
        if holder is optimizer:
            self._stepping = optimizer
        for watch in self._by_optimizer.get(id(holder), ()):
            if watch.table.optimized.grad is None:  # as that of a parameter which its module no longer uses
                watch.check_same()
            if watch.notice_edits():
                self.notice_edit(watch)
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._watch_closure(holder, args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._watch_closure(holder, kwargs["closure"])}
        self._see_gradients(holder)
        return None

    def _watch_closure(self, optimizer: Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
        def watched() -> Any:
            loss = closure()
            self._see_gradients(optimizer)
            return loss

        return watched

    def _see_gradients(self, optimizer: Optimizer) -> None:
        by_parameter, declared = self._by_parameter, id(optimizer) in self._declared
        for group in optimizer.param_groups:
            why_sparse = None if declared else why_not_row_local(optimizer, group, sparse_gradient=True)
            changes = ANY_CHANGES if declared else in_place_changes(group)
            for parameter in group["params"]:
                watch = by_parameter.get(id(parameter))
                if watch is None:
                    if self._hint_steps:
                        self._see_no_table(parameter)
                    continue
                if watch.table.optimizer is not optimizer:
                    self._see_other_optimizer(watch, optimizer)
                elif parameter.grad is None:
                    continue
                elif (gradient := watch.table.local(parameter.grad)) is None:
                    watch.see_any()
                    self._notices.add(watch.table.name, _OTHERWISE)
                else:
                    why = why_sparse if gradient.is_sparse else _why_dense(optimizer, group, gradient, declared)
                    if gradient.is_cuda and torch.cuda.is_current_stream_capturing():
                        watch.never_tracked = True
                        why = _CAPTURED
                    elif watch.observer is not None:
                        watch.observer(gradient)
                    if why is None:
                        if not (watch.state_is_seen or gradient.is_sparse or declared):
                            watch.see_state(restless_rows(optimizer, _local_state(optimizer, parameter)))
                        if declared and self._declared[id(optimizer)] and watch.table.rows:
                            watch.call_witness(gradient, self.count)
                        watch.see_gradient(gradient, changes=0 if skips(optimizer, gradient) else changes)
                    else:
                        watch.see_any()
                        self._notices.add(watch.table.name, why)

    def _see_no_table(self, parameter: Tensor) -> None:
        name, gradient = self._names.get(id(parameter)), parameter.grad
        if name is not None and gradient is not None and gradient.is_sparse:
            self._notices.hint(name)

    def _see_other_optimizer(self, watch: TableWatch, optimizer: Optimizer) -> None:
        watch.see_any()
        if id(optimizer) not in self._by_optimizer:  # else the parameter moved: begin() looks where it is
            kind = type(optimizer).__name__
            why = f"{kind}, whose state is not saved, updates it; pass that optimizer to the Checkpointer too"
            self._notices.add(watch.table.name, why)

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.ignored:
            return
        holder = self._holders.get(id(optimizer), optimizer)
        if holder is not optimizer and holder is self._stepping:
            return  # the step that this one is a part of is not over
        self._stepping = None
        for watch in self._by_optimizer.get(id(holder), ()):
            if watch.witness is not None and watch.breaks_its_word():
                self._notices.add(watch.table.name, _NOT_ROW_LOCAL)
            if not watch.stepped():
                self._notices.add(watch.table.name, _HOOKED)
        if id(holder) in self.count_of:
            self._count(holder)
        self._notices.publish()

    def _count(self, optimizer: Optimizer) -> None:
        """One of the optimizers given has made a step; the first ones are looked at more closely."""
        self.count += 1
        self.count_of[id(optimizer)] += 1
        if self._hint_steps:
            self._hint_steps -= 1
        if self._declared.get(id(optimizer)):
            self._declared[id(optimizer)] -= 1
        if id(optimizer) in self._unchecked and optimizer.state:
            self._unchecked.discard(id(optimizer))
            self._check(optimizer)

    def _after_load(self, optimizer: Optimizer) -> None:
        if not self.ignored:
            for watch in self._by_optimizer[id(optimizer)]:
                watch.marks.live.add_all()

    def _group_by_optimizer(self) -> dict[int, list[TableWatch]]:
        return {
            id(optimizer): [watch for watch in self._watches if watch.table.optimizer is optimizer]
            for optimizer in self._optimizers
        }


def _holders_of_inner(optimizers: Sequence[Optimizer]) -> dict[int, Optimizer]:
    """The optimizers given that hold others, by the identities of those: a step of one inside is a step of theirs."""
    given = {id(optimizer) for optimizer in optimizers}
    found: dict[int, Optimizer] = {}
    for optimizer in optimizers:
        waiting: list[Optimizer] = [optimizer]
        while waiting:
            for inner in inner_optimizers(waiting.pop()).values():
                if id(inner) not in given and id(inner) not in found:
                    found[id(inner)] = optimizer
                    waiting.append(inner)
    return found


def _why_dense(optimizer: Optimizer, group: Mapping[str, Any], gradient: Tensor, declared: bool) -> str | None:
    if gradient.layout is not torch.strided:
        return f"changed rows cannot be read from a gradient of layout {gradient.layout}; use sparse=True to get deltas"
    if declared:
        return None
    return why_not_row_local(optimizer, group, sparse_gradient=False, dtype=gradient.dtype)


def _local_state(optimizer: Optimizer, parameter: Tensor) -> dict[Any, Any]:
    """What it keeps of a parameter, as far as this rank holds it."""
    state: dict[Any, Any] = optimizer.state[parameter]
    if not is_dtensor(parameter):
        return state
    return {key: local_of(value) if isinstance(value, Tensor) else value for key, value in state.items()}


def _weak(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method as a hook that does not keep its object alive and runs as it is in a compiled step."""
    reference = weakref.WeakMethod(method)

    def hook(*args: Any) -> Any:
        alive = reference()
        return alive(*args) if alive is not None else None

    return cast(Callable[..., Any], torch.compiler.disable(hook))
