"""Inspects a run without changing it: summaries, history, verification, prune previews, pictures of the grid."""
