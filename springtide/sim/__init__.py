"""Simulates a cluster in virtual time: jobs, pods and faults, planned by the real planning code.

Read in this order: `world.parameters` (constants and their sources) → `world.workload` (submitted jobs, drawn or
from a trace) → `world.world` (speed of a job, pods and their pending times) → `engine.simulation` (events, policy,
plans) → `report`.
"""
