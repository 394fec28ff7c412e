"""Joins small files of tables (K5), in a process of its own: a query must not wait for it, and may not die of it."""
