"""To and from other formats: exports, imports, and what others' checkpoints look like."""
