"""What it takes to break things on purpose.

``disk`` a disk that loses what was not synced; ``faults`` a store that fails when told to; ``server`` a real S3 server
on this machine; ``runtime`` another clock; ``store_suite`` the tests every Store has to pass, yours included.
"""
