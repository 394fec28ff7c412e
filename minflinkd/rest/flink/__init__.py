"""Paths that exist because Flink's dashboard and command line call them. What minflinkd is about has modules above."""
