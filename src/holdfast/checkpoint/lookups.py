"""Where pickled models find the hooks of tables with ``max_norm``: users' files contain this module's name."""

from holdfast.checkpoint.track.max_norm import _Hook as _Hook
