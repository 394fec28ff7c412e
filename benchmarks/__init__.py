"""Measurements, one script per row, compared where possible with the same work without minflinkd.

`python -m benchmarks.<row> [--quick]` prints one JSON line per figure on stdout and a table on stderr;
`python -m benchmarks [--quick]` runs every row and writes `build/benchmarks.md`.
"""
