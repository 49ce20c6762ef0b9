"""The protocol of a cluster as pure state machines: a message in, messages out. No socket, clock, thread or torch."""
