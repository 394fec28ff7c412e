"""The storage plugin interface (storage.md), the loading of backends by URI scheme, and two-phase publication."""
