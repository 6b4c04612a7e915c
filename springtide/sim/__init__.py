"""Simulates a cluster in virtual time: jobs, pods and faults, planned by the real planning code.

Reading order: `world.parameters` (constants and their sources) → `world.workload` or `world.trace` (submitted jobs) →
`world.world` (speed and resource use of a job) → `world.cluster` (pods and their pending times) → `engine.simulation`
(events, policy, plans) → `report.measure`.
"""
