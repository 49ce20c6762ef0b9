"""The demo: a killed trainer ends, bit for bit, where an uninterrupted one does; a cluster lives through deaths."""
