"""Checkpoints of a job: when one is taken, what it holds, where it is stored, and what became of it."""
