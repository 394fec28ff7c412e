"""Takes submissions, stores jobs before it answers, starts a JobMaster per job, keeps results, cleans up after jobs."""
