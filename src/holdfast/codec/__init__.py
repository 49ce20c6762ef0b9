"""Row records as bytes and back, with a stated error. Arrays in, bytes out; no I/O (docs/spec/codec.md)."""

from holdfast.codec.base import Codec, Encoded, concatenate, take
from holdfast.codec.difference import Baseline, Difference
from holdfast.codec.exact import Exact, Rounded
from holdfast.codec.json import from_json, to_json
from holdfast.codec.quantized import AdaptiveAsymmetric, Asymmetric, Fitted, KMeans, Logarithmic, Symmetric, default
from holdfast.codec.slots import slot_codec

__all__ = [
    "AdaptiveAsymmetric",
    "Asymmetric",
    "Baseline",
    "Codec",
    "Difference",
    "Encoded",
    "Exact",
    "Fitted",
    "KMeans",
    "Logarithmic",
    "Rounded",
    "Symmetric",
    "concatenate",
    "default",
    "from_json",
    "slot_codec",
    "take",
    "to_json",
]
