"""Which codec each column of a table gets."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.codec.base import Codec
from holdfast.codec.chunk import Codecs, dim_of
from holdfast.codec.exact import Exact
from holdfast.codec.quantized import AdaptiveAsymmetric, Asymmetric, KMeans, Symmetric, default
from holdfast.codec.rows import is_float
from holdfast.codec.slots import slot_codec
from holdfast.errors import ConfigurationError
from holdfast.kernels.quantize import MAX_DIM
from holdfast.types import ColumnSpec, TableSpec

_WEIGHTS: dict[str, Callable[[int], Codec]] = {
    "default": lambda bits: default(bits),
    "published": lambda bits: Asymmetric(bits=8) if bits == 8 else AdaptiveAsymmetric.as_published(bits),
    "asymmetric": lambda bits: Asymmetric(bits=bits),
    "symmetric": lambda bits: Symmetric(bits=bits),
    "kmeans": lambda bits: Asymmetric(bits=8) if bits == 8 else KMeans(bits=bits),  # 8: what differences stand on
}


def weight_codec(bits: int, method: str = "default") -> Codec:
    """The codec for weights in this many bits."""
    if method not in _WEIGHTS:
        raise ConfigurationError(f"unknown method {method!r}; use one of {', '.join(_WEIGHTS)}")
    return _WEIGHTS[method](bits)


def table_codecs(spec: TableSpec, bits: int, method: str = "default") -> Codecs:
    """A codec for each column of a table whose weights are stored in ``bits`` bits."""
    weight, *slots = spec.columns
    codecs = {weight.name: weight_codec(bits, method) if can_quantize(weight) else Exact()}
    for slot in slots:
        codecs[slot.name] = slot_codec(slot.name, dim_of(slot), slot.dtype, bits) if can_quantize(slot) else Exact()
    return codecs


def can_quantize(column: ColumnSpec) -> bool:
    """Whether a column has numbers, and few enough of them in a row, for a grid; what finds rows is none."""
    return is_float(column.dtype) and 0 < dim_of(column) <= MAX_DIM and not column.is_keyed
