"""The trainer's side: the parts of a Checkpointer, the loop's saves, its agent, and resuming."""
