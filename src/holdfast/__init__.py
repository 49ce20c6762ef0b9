"""Holdfast keeps the training of recommendation models alive."""
