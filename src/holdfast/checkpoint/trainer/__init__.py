"""The trainer's side: what a Checkpointer is made of, the loop's saves, its agent, and the way back."""
