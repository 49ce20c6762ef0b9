"""Puts saved rows and state back into live tensors."""
