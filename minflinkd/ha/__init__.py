"""Leader election and its backends (ha.md)."""
