"""Reads and checks the state that writers saved; errors name the object that holds it."""

from __future__ import annotations

from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.checkpoint.restore.state_tensors import read_state
from holdfast.errors import DamagedData
from holdfast.format.manifest import Manifest
from holdfast.format.state import SavedState, SharedState


def read_saved(fetcher: Fetcher, manifest: Manifest, *, host: bool = False) -> SavedState:
    """The state that one writer saved; raises DamagedData. ``host``: in the form without torch."""
    return checked_state(read_state(fetcher, manifest, host=host), manifest)


def checked_state(tree: object, manifest: Manifest) -> SavedState:
    """A state tree that was read from a part; raises DamagedData if it is none."""
    return SavedState.from_tree(tree, name=_object_of(manifest))


def shared_state(saved: SavedState, manifest: Manifest) -> SharedState:
    """What all ranks share, in the state of the first part; raises DamagedData if that holds nothing of the kind."""
    if saved.shared is None:
        raise DamagedData(_object_of(manifest), "lacks the state that all ranks share, which the first part must hold")
    return saved.shared


def _object_of(manifest: Manifest) -> str:
    """The bundle that the state begins in."""
    return manifest.bundles[manifest.state[0].place.bundle].name if manifest.state else manifest.checkpoint
