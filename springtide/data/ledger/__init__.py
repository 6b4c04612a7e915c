"""Pure. Track the pending, leased and trained samples.

The master's lease service calls this package. Start reading at job_ledger.py.
"""
