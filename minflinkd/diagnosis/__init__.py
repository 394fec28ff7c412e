"""What limits or ails a job or the cluster, in plain sentences, from what is measured (E19a).

`facts.py` is what a rule may look at, `findings.py` what it returns. Each rule is one function of the facts, in the
module of its subject; `job.py` and `cluster.py` list them. Nothing here asks anybody or looks at a clock.
"""
