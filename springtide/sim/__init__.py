"""A cluster that exists in numbers only: virtual time, jobs, pods and faults, and the real planning code at work.

The walk: `parameters` (every constant and where it comes from) → `workload` or `trace` (who submits what) → `world`
(how fast a job is, what it uses) → `cluster` (who gets pods, and when) → `simulation` (events, policy, plans) →
`measure`.
"""
