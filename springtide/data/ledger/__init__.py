"""Pure. Tracks which samples are pending, leased and trained.

The master's lease service calls this package. Start at job_ledger.py.
"""
