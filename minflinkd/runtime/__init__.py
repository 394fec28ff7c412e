"""The basis of every component: lifecycle, supervision, ids, errors, clock, state machines. No I/O of its own."""
