"""A running query: its micro-batches, its snapshots, its figures, and how it ends."""
