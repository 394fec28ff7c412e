"""Runs the row: `python -m benchmarks.nexmark --quick`."""

from benchmarks.nexmark import comparison
from benchmarks.running import quick_asked, run

if __name__ == "__main__":
    run(comparison.measure, quick=quick_asked(comparison.__doc__))
