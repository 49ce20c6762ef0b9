"""Takes a snapshot: what it holds, and how it gets into frames."""
