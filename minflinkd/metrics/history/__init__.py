"""What the daemon remembers of its metrics (E16): 5 s apart for an hour, a minute apart for a day. Pure.

It is told what was measured and when. `rest/history` measures, stores and shows it.
"""
