"""Triton kernels that are launched again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

from holdfast.kernels.relaunch import Relaunch


class Launches:
    """A kernel, or what one was compiled to: remembers what it was launched with."""

    def __init__(self, compiled: Any = None, *, refuses: bool = False) -> None:
        self.seen: list[Any] = []
        self._compiled = compiled
        self._refuses = refuses

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., Any]:
        def launch(*arguments: Any, **options: Any) -> Any:
            if self._refuses:
                raise TypeError("function takes other arguments")
            self.seen.append((grid, arguments, options))
            return self._compiled

        return launch


def test_what_is_compiled_for_one_kind_is_launched_again_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton.__version__", "3.6.0")
    compiled = Launches()
    kernel = Launches(compiled)
    launch = Relaunch(kernel)
    launch((2, 1, 1), "a", 1, 2, num_warps=1)
    launch((3, 1, 1), "a", 3, 4, num_warps=1)
    launch((4, 1, 1), "b", 5, 6, num_warps=1)
    assert compiled.seen == [((3, 1, 1), (3, 4), {})]
    assert kernel.seen == [((2, 1, 1), (1, 2), {"num_warps": 1}), ((4, 1, 1), (5, 6), {"num_warps": 1})]


def test_a_compiled_kernel_that_takes_other_arguments_is_left_to_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton.__version__", "3.6.0")
    kernel = Launches(Launches(refuses=True))
    launch = Relaunch(kernel)
    for number in range(3):
        launch((1, 1, 1), "a", number)
    assert [arguments for _, arguments, _ in kernel.seen] == [(0,), (1,), (2,)]


def test_nothing_is_known_of_other_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton.__version__", "4.0.0")
    compiled = Launches()
    launch = Relaunch(Launches(compiled))
    launch((1, 1, 1), "a", 1)
    launch((1, 1, 1), "a", 2)
    assert not compiled.seen
