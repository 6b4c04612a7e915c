"""Pure. Which samples are pending, leased or trained.

Place on the sample walk: after the master's leases. Start at job_ledger.py.
"""
