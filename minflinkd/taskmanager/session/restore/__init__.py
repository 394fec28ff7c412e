"""Where a query starts: with the state of a snapshot, moved and repartitioned if need be, or at given offsets."""
