"""Jobs simulated one by one: the real master, ledger, leases, slots and checkpoints, on virtual machines and time.

The walk: `loop` (virtual time) → `machines` (processes, and how they end) → `master` (the real desk) → `wire` (how
members reach it) → `worker` and `server` (real leases, real slots, virtual work) → `faults` (what goes wrong) →
`counting` (was every batch applied once, everywhere?) → `job` (all of it together).
"""
