"""Tries out, before a job starts, what Spark refuses only later: options, targets of sinks, another version's state."""
