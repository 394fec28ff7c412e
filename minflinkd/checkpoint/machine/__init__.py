"""Decides about the checkpoints of a job: a pure machine, whose parts are the stages of a checkpoint."""
