"""What a query keeps: operators and their state, snapshots of it, and what its sinks have staged."""
