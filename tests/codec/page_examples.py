"""The examples of docs/spec/codec.md: one row in several codecs."""

from __future__ import annotations

import json

import numpy as np

from holdfast.codec import from_json

MORE = {"kmeans": {"iterations": 15}}  # parameters beside the bits
ROW = np.array([[-1.0, -0.75, 0.0, 0.25, 0.5, 0.75, 1.0, 3.0]], dtype=np.float32)


def record(what: str) -> str:
    """``fitted:2`` or ``exact``: the codec's JSON, the record of the row and what it decodes to."""
    name, _, bits = what.partition(":")
    value = {"name": name, "bits": int(bits), **MORE.get(name, {})} if bits else {"name": name}
    codec = from_json(value)
    encoded = codec.encode(ROW)  # type: ignore[call-arg]
    decoded = codec.decode(encoded, ROW.shape[1])  # type: ignore[call-arg, arg-type]
    lines = [
        json.dumps(value),
        f"row      {' '.join(f'{x:g}' for x in ROW[0])}",
        f"record   {encoded.records.tobytes().hex(' ')}",
        f"decoded  {' '.join(f'{x:g}' for x in decoded[0])}",
    ]
    return "\n".join(lines) + "\n"
