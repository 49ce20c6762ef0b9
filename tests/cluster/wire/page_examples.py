"""The examples of docs/spec/cluster.md."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, get_type_hints

import numpy as np

from holdfast.cluster.core.members import CONTROLLER, Member, Role, View
from holdfast.cluster.core.messages import NewView, Push
from holdfast.cluster.core.progress import Progress
from holdfast.cluster.wire.frames import TYPES, Framed, Route, write

_WORKER, _SERVER = Member(Role.WORKER, 2, 1), Member(Role.SERVER, 0, 3)
_KEYS = np.array([7, 9], np.int64)
_LARGE = np.zeros((2, 1024), np.float32)  # more than lies in a header
_SAMPLES: dict[str, tuple[Route, int, Framed]] = {
    "push": (Route(_WORKER, _SERVER), 5, Push(41, (_KEYS, _LARGE), b"epoch 3", Progress(40, None))),
    "view": (Route(CONTROLLER, _SERVER), 2, NewView(View(number=4, servers=(3, 1), workers=(1,)))),
}
_OPAQUE = {
    "rows": "arrays",
    "values": "arrays",
    "gradients": "arrays",
    "stripes": "stripes",
    "records": "arrays",
    "dense": "arrays | None",
    "place": "bytes | None",
}


def frames_of(name: str) -> list[bytes]:
    """The frames of a sample message."""
    route, number, message = _SAMPLES[name]
    head, arrays = write(route.to_bytes(), number, message)
    return [bytes(head), *(array.tobytes() for array in arrays)]


def messages() -> str:
    """A line for each type of message: its code, its name, its fields."""
    return "".join(f"{code:3d}  {kind.__name__:<13} {_fields(kind)}".rstrip() + "\n" for code, kind in TYPES.items())


def _fields(kind: type) -> str:
    hints = get_type_hints(kind)
    return ", ".join(f"{each.name}: {_shown(hints[each.name], each.name)}" for each in fields(kind))


def _shown(hint: object, name: str) -> str:
    plain = hint.__name__ if isinstance(hint, type) and not hasattr(hint, "__origin__") else str(hint)
    return _OPAQUE[name] if hint is Any else re.sub(r"\b(?:\w+\.)+(\w)", r"\1", plain)
