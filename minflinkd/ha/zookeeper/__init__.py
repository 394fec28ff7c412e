"""`high-availability.type: zookeeper`. Layout below the cluster's path:

election/c-<sequence>  the claims, ephemeral; the lowest leads. Its data says who it is (`service.Member`)
epoch                  the epoch of the latest leadership
cluster                id and secret's fingerprint of the cluster, from the first daemon
records/...            the job store and the pointers to completed checkpoints, written by the leader only
"""
