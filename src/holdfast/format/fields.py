"""Validates fields of documents as they are read: what a number, a name or a list may be is defined only here.

A document with the right digest may still be nonsense. Each function returns the value in its type or raises
ValueError, which ``document.parse`` turns into DamagedData with the object's name and the field's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.format.document import Json

if TYPE_CHECKING:  # catalogs are read without NumPy, which takes longer to import than `holdfast ls` may run
    from typing import TypeAlias

    import numpy as np
    from numpy.typing import NDArray

    Numbers: TypeAlias = NDArray[np.int64]

T = TypeVar("T")
LARGEST = 2**63 - 1  # what counts bytes or rows fits into 64 bits everywhere
_SHOWN = 60  # characters of a value in a message


def integer(value: Json, what: str, *, least: int = 0, most: int = LARGEST) -> int:
    """A whole number within bounds; true and 1.0 are none."""
    if type(value) is not int or not least <= value <= most:
        raise _wrong(value, what, f"a whole number from {least} to {most}" if most < LARGEST else _at_least(least))
    return value


def real(value: Json, what: str, *, least: float = -math.inf) -> float:
    """A finite number."""
    if type(value) not in (int, float) or not math.isfinite(value) or value < least:
        raise _wrong(value, what, "a finite number" if least == -math.inf else f"a finite number from {least:g}")
    return float(value)


def flag(value: Json, what: str) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise _wrong(value, what, "true or false")
    return value


def text(value: Json, what: str) -> str:
    """A string."""
    if type(value) is not str:
        raise _wrong(value, what, "a string")
    return value


def maybe(check: Callable[[Json, str], T], value: Json, what: str) -> T | None:
    """None, or what ``check`` makes of it."""
    return None if value is None else check(value, what)


def items(value: Json, what: str, count: int | None = None) -> list[Json]:
    """A list, of ``count`` items if given."""
    if type(value) is not list or (count is not None and len(value) != count):
        raise _wrong(value, what, "a list" if count is None else f"a list of {count}")
    return value


def fields(value: Json, what: str) -> dict[str, Json]:
    """A JSON object."""
    if type(value) is not dict:
        raise _wrong(value, what, "an object")
    return value


def texts(value: Json, what: str) -> tuple[str, ...]:
    """Strings without duplicates."""
    found = tuple(text(each, what) for each in items(value, what))
    if len(set(found)) != len(found):
        raise ValueError(f"{what} names something twice")
    return found


def integers(values: Iterable[Json], what: str, *, least: int = 0) -> Numbers:
    """Whole numbers as an array."""
    import numpy as np

    listed = list(values)
    if not set(map(type, listed)) <= {int}:
        raise _wrong(next(each for each in listed if type(each) is not int), what, "a whole number")
    try:
        found = np.array(listed, dtype=np.int64)
    except OverflowError:
        raise _wrong(max(listed, key=abs), what, "a whole number of 64 bits") from None
    if len(found) and int(found.min()) < least:
        raise _wrong(int(found.min()), what, _at_least(least))
    return found


def _at_least(least: int) -> str:
    return f"a whole number from {least} on"


def _wrong(value: Json, what: str, wanted: str) -> ValueError:
    shown: Any = repr(value)
    return ValueError(f"{what} is {shown[:_SHOWN]}{'...' if len(shown) > _SHOWN else ''}, not {wanted}")
