"""Tables larger than a machine: servers hold shards, workers train on them, a controller watches both."""
