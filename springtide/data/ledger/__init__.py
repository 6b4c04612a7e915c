"""Pure. Which samples are pending, leased or trained. Sample walk: after the master's leases. Start at
job_ledger.py.
"""
