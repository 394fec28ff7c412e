"""The storage plugin interface (storage.md), loading of backends by URI scheme, and two-phase publication."""
