"""What a user submits (jobs.md): the model, job files, the Python API, validation, and chaining into tasks."""
