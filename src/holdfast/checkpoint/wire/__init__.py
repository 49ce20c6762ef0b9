"""What passes between a trainer and its agent: messages, and frames in shared memory. No torch here."""
