"""Looks at a run without changing it: summaries, history, verification, what a prune would do, the grid's picture."""
