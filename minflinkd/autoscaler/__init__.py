"""How many slots a job needs for the rows that come in, and when to give it others (R62). Pure.

`readings` turns what a job shows into micro-batches, `cost` fits what they cost, `demand` says how many slots the rows
that come in need, `effect` whether a change has helped, `decision` what to do. `dispatcher/autoscaling.py` carries it
out.
"""
