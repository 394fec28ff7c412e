"""Attempts of tasks on this TaskManager, from the deployment to the removal of their files."""
