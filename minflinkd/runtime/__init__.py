"""What every component stands on: lifecycle, supervision, ids, errors, clock, state machines. No I/O of its own."""
