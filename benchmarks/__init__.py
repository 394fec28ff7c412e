"""Measured, not asserted: one script a row, each beside what the same work costs without minflinkd where there is such.

`python -m benchmarks.<row> [--quick]` prints one JSON line per figure on stdout and a table on stderr;
`python -m benchmarks [--quick]` runs every row and writes `build/benchmarks.md`.
"""
