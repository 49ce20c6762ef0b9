"""Takes snapshots: what they hold, and how it gets into frames."""
