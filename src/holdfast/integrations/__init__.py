"""Libraries that Holdfast works with, each optional and imported only where a model uses it."""
