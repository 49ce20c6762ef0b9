"""What a training loop consists of: tables, state, optimizers, random numbers, batches."""
