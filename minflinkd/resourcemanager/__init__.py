"""Finds or starts TaskManagers with free slots for jobs (resources.md)."""
