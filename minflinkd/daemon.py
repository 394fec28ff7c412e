"""Wires the components of the daemon; signals; sd_notify."""
