"""Plans for jobs, and remembers them: in a master's own process (`embedded`), or as a service of many masters.

A consult: `remote` -> `service` -> `administrator` (what is new with the job) -> `optimizers` (why, and which policy)
-> `pool`, `executor` (the policy at work) -> `pledges` (all jobs together within capacity) -> advice. History and what
lives is kept by `store`.
"""
