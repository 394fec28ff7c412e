"""The code of jobs: artifacts, and how the modules of many jobs are kept apart in one session."""
