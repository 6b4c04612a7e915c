"""Simulates single jobs with the real master, ledger, leases, slots and checkpoints, on virtual machines.

Reading order: `virtual_loop` (virtual time) → `members.machines` (processes and their exits) → `members.master` (the
real master service) → `members.master_connection` (requests to the master) → `members.worker` and `members.server`
(real leases and slots, virtual work) → `faults` → `counting_oracle` (checks that every batch was applied once) → `job`
(assembles a job).
"""
