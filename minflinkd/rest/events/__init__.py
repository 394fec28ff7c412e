"""Server-sent events (E16): what changes in the cluster, or in one job, to everybody who listens."""
