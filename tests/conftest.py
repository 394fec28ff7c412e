"""What holds for all tests: a random walk repeats exactly, unless it is asked to look for new ground; real servers."""

from __future__ import annotations

import os

from hypothesis import settings

pytest_plugins = ["tests.servers.fixtures"]

# `make test` must say the same thing twice; `make test-all` goes where no run has been.
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("exploring", print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
