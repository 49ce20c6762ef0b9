"""Spans: where the time of a worker's step goes. Each second counts once, for the innermost of what is timed."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from holdfast.cluster.train import loop as loop_module
from holdfast.cluster.train.loop import TrainingLoop


class Spans:
    """Seconds by label."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner_s = [0.0]  # within what is being timed, level by level

    def clear(self) -> None:
        """Begin again."""
        self.seconds.clear()

    def timed(self, function: Callable[..., Any], label: str) -> Callable[..., Any]:
        """The same function, on the clock."""

        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            self._inner_s.append(0.0)
            began_s = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                took_s = time.perf_counter() - began_s
                own_s = took_s - self._inner_s.pop()
                self.seconds[label] = self.seconds.get(label, 0.0) + own_s
                self._inner_s[-1] += took_s

        return timed

    def watch(self, owner: Any, name: str, label: str) -> None:
        """Put an object's method, or a module's function, on the clock."""
        setattr(owner, name, self.timed(getattr(owner, name), label))


def trace(spans: Spans, worker: TrainingLoop) -> None:
    """Put the parts of a training loop on the clock. On a GPU a part that waits has what others left to it."""
    inner: Any = worker
    module: Any = loop_module
    for owner, name, label in (
        (inner._fetcher, "begin", "unique"),
        (inner._fetcher, "request", "unique"),
        (inner._exchange, "pull", "pull, sending"),
        (inner._exchange, "let_in", "letting messages in"),
        (inner._exchange, "take", "pull, waiting"),
        (inner._fetcher, "receive", "rows to the model"),
        (inner._dense, "install", "dense values to the model"),
        (inner._fetcher, "gradients", "gradients to the host"),
        (inner._dense, "gradients", "gradients to the host"),
        (module.HostCopies, "__init__", "gradients to the host"),
        (module.HostCopies, "arrays", "gradients to the host"),
        (module, "sum_of", "check for NaN"),
        (module, "all_finite", "check for NaN"),
        (inner, "_place_now", "place"),
        (inner._encoder, "encode", "place"),
        (inner._exchange, "push", "push"),
    ):
        spans.watch(owner, name, label)
