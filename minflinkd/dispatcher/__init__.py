"""Takes submissions, stores jobs before answering, starts a JobMaster per job, keeps results, cleans up after jobs."""
