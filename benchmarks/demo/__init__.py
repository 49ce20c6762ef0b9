"""The demo: a trainer is killed several times and ends, bit for bit, where an uninterrupted one does."""
