"""Kale's figures (003): days of traffic in virtual time, and schemes that scale a job along them.

`traffic` makes days, `world` runs many of them at once, `schemes` are asked how many workers there should be, `tuning`
finds the best settings of each; `rows` and `pictures` say what came out. Ours is `planning.online.decision`, as
in the master of a real job.
"""
