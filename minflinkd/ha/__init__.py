"""Leader election and its backends."""
