"""Measures jobs and the cluster every 5 s, stores the figures and answers them (E16)."""
