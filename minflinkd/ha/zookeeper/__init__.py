"""`high-availability.type: zookeeper`. Layout below the cluster's path:

election/c-<sequence>  the claims, ephemeral nodes; the lowest leads. Each contains its daemon (`service.Member`)
epoch                  the epoch of the latest leadership
cluster                the cluster's id and the fingerprint of its secret, written by the first daemon
records/...            the job store and the pointers to completed checkpoints, written only by the leader
"""
