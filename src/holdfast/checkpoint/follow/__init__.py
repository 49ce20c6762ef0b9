"""Publishing for inference: newly committed checkpoints, applied to weights that are in use."""
