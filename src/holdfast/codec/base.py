"""What a codec is: rows in, fixed-size records out, so rows can be moved without decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigurationError

Rows: TypeAlias = NDArray[Any]  # [rows, dim] of the column's type; bfloat16 as uint16
Records: TypeAlias = NDArray[np.uint8]  # [rows, bytes per row]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """One record per row; and, in the order of the records that say so, the bytes of the rows that no record can hold.

    Rows with infinities or NaN are such, and a few more; each codec says which. They are kept exactly.
    """

    records: Records
    escapes: Records

    def __len__(self) -> int:
        return len(self.records)

    @property
    def size_bytes(self) -> int:
        """Of all records and escapes."""
        return int(self.records.nbytes + self.escapes.nbytes)

    def copy(self) -> Encoded:
        """A copy that owns its memory."""
        return Encoded(records=self.records.copy(), escapes=self.escapes.copy())


class Codec(Protocol):
    """A frozen value that turns rows into records and back, with the error that its docstring states.

    The records of a row depend on the row alone: neither on its neighbours, nor on threads, nor on the machine.
    """

    name: ClassVar[str]

    def parameters(self) -> Mapping[str, int | float | str]:
        """All that makes this codec another than one of the same name; JSON."""
        ...

    def bytes_per_row(self, dim: int, dtype: str = "F32") -> int:
        """Bytes of the record of a row of ``dim`` values."""
        ...

    def encode(self, rows: Rows, dtype: str = "F32", *, threads: int = 1) -> Encoded:
        """Records and escapes of ``[rows, dim]`` rows."""
        ...

    def decode(self, encoded: Encoded, dim: int, dtype: str = "F32", *, threads: int = 1) -> Rows:
        """The rows, in their original type."""
        ...

    def escaped(self, records: Records, dim: int, dtype: str = "F32") -> NDArray[np.bool_]:
        """Which rows are among the escapes."""
        ...


def take(codec: Codec, encoded: Encoded, positions: NDArray[np.int64], dim: int, dtype: str = "F32") -> Encoded:
    """The rows at these positions, in this order, without decoding them."""
    flags = codec.escaped(encoded.records, dim, dtype)
    place = np.cumsum(flags) - 1
    chosen = positions[flags[positions]]
    return Encoded(records=encoded.records[positions], escapes=encoded.escapes[place[chosen]])


def concatenate(parts: Sequence[Encoded]) -> Encoded:
    """The rows of all parts, one part after the other."""
    if not parts:
        raise ConfigurationError("there is nothing to concatenate: pass at least one part")
    return Encoded(
        records=np.concatenate([part.records for part in parts]),
        escapes=np.concatenate([part.escapes for part in parts]),
    )
