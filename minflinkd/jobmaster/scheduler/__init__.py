"""What one JobMaster decides: phases of the job, slots, deployments, failover. Pure."""
