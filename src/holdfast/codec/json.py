"""Codecs as JSON, as stored next to the data they encoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.codec.base import Codec
from holdfast.codec.difference import Baseline, Difference
from holdfast.codec.exact import Exact, Rounded
from holdfast.codec.quantized import AdaptiveAsymmetric, Asymmetric, Fitted, KMeans, Logarithmic, Quantized, Symmetric
from holdfast.errors import ConfigurationError, UnsupportedState

_PLAIN: dict[str, type[Exact] | type[Rounded]] = {kind.name: kind for kind in (Exact, Rounded)}
_QUANTIZED: dict[str, type[Quantized]] = {
    kind.name: kind for kind in (Symmetric, Asymmetric, AdaptiveAsymmetric, Fitted, Logarithmic, KMeans)
}


def to_json(codec: Codec | Difference) -> dict[str, Any]:
    """The codec's name and parameters."""
    return {"name": codec.name, **codec.parameters()}


def from_json(value: Mapping[str, Any]) -> Codec | Difference:
    """The codec of that name and with those parameters, all of them and no others."""
    parameters = dict(value)
    name = parameters.pop("name", None)
    try:
        if name == Difference.name:
            return _difference(**parameters)
        if name in _PLAIN:
            return _PLAIN[name](**parameters)
        if name in _QUANTIZED:
            return _complete(_QUANTIZED[name](**parameters), parameters)
    except (TypeError, ConfigurationError) as error:
        raise UnsupportedState(f"codec {name!r} does not have the parameters {parameters}: {error}") from error
    known = ", ".join([*_PLAIN, *_QUANTIZED, Difference.name])
    raise UnsupportedState(f"unknown codec {name!r}, perhaps from a newer Holdfast; this one knows {known}")


def _complete(codec: Quantized, parameters: Mapping[str, Any]) -> Quantized:
    """Refuse what only a default completed: another Holdfast may have another default; and numbers that are none."""
    for name, value in parameters.items():
        if type(value) is not int and not (name == "ratio" and type(value) is float):
            raise ConfigurationError(f"{name} is {value!r}")
    if missing := codec.parameters().keys() - parameters.keys():
        raise ConfigurationError(f"{', '.join(sorted(missing))} is missing")
    return codec


def _difference(*, inner: Mapping[str, Any], baseline: str, digest: str) -> Difference:
    codec = from_json(inner)
    if not isinstance(codec, Quantized):
        raise ConfigurationError(f"differences are not stored with {codec.name!r}")
    if type(baseline) is not str or type(digest) is not str:
        raise ConfigurationError("a baseline is named by its id and its digest")
    return Difference(inner=codec, baseline=Baseline(checkpoint=baseline, digest=digest))
