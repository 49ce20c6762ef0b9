"""Tools to break things on purpose.

``disk`` a disk that loses what was not synced; ``faults`` a store that fails on demand; ``server`` a real S3 server on
this machine; ``runtime`` another clock; ``store_suite`` the tests that every Store must pass, yours included.
"""
