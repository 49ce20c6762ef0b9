"""With which codecs a table of a snapshot is to be stored, and what the agent is told of it."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.snapshot.changed import ChangedRows, baseline_row_bytes, delta_row_bytes
from holdfast.checkpoint.wire.messages import TableSlice
from holdfast.codec import Codec, Difference, to_json
from holdfast.codec.choice import can_quantize, table_codecs, weight_codec
from holdfast.codec.chunk import Codecs, dim_of
from holdfast.codec.quantized import Quantized
from holdfast.format.manifest import table_spec_to_json
from holdfast.types import BASELINE_BITS, Stored, TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCodecs:
    """The codecs of a table's columns, none for as they are, and that of its weights' differences."""

    spec: TableSpec
    codecs: Codecs
    difference: Codec | None

    @classmethod
    def of(cls, spec: TableSpec, stored: Stored) -> TableCodecs:
        """Rows not stored as differences, those of the baseline first of all, have the baseline's precision."""
        if stored.bits is None:
            return cls(spec=spec, codecs={}, difference=None)
        bits = BASELINE_BITS if stored.difference else stored.bits
        differs = stored.difference and can_quantize(spec.weight)
        return cls(
            spec=spec,
            codecs=table_codecs(spec, bits, stored.method),
            difference=weight_codec(stored.bits, stored.method) if differs else None,
        )

    def known_here(self, *, whole: bool) -> dict[str, Codec]:
        """The codecs for rows that the agent does not have yet: it alone knows what weights differ from."""
        known = {name: codec for name, codec in self.codecs.items() if not isinstance(codec, Difference)}
        if self.difference is not None and not whole:
            known.pop(self.spec.weight.name, None)
        return known

    def slice(self, start: int, stop: int, *, whole: bool, made_from: str | None = None) -> TableSlice:
        """What the agent has to know of the rows that this writer owns.

        ``made_from``: weights come as differences from that checkpoint.
        """
        return TableSlice(
            spec=table_spec_to_json(self.spec),
            start=start,
            stop=stop,
            whole=whole,
            codecs={name: to_json(codec) for name, codec in self.codecs.items()} or None,
            difference=to_json(self.difference) if self.difference is not None else None,
            made_from=made_from,
        )

    @property
    def baseline(self) -> Quantized | None:
        """The codec of weights that differences refer to, if weights are stored so and both kinds have records."""
        weight = self.spec.weight
        codec, difference = self.codecs.get(weight.name), self.difference
        if not (isinstance(codec, Quantized) and isinstance(difference, Quantized)):
            return None
        return None if any(each.is_exact(dim_of(weight), weight.dtype) for each in (codec, difference)) else codec

    def changed(self, *, rows: int, since_last: int, since_baseline: int) -> ChangedRows:
        """What changed of so many rows, with what they take in storage."""
        return ChangedRows(
            rows=rows,
            since_last=since_last,
            since_baseline=since_baseline,
            baseline_row_bytes=baseline_row_bytes(self.spec, self.codecs),
            delta_row_bytes=delta_row_bytes(self.spec, self.codecs, self.difference),
        )
