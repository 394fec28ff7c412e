"""Checkpoints of a job: when one is taken, what it holds, where it lies, and what became of it."""
