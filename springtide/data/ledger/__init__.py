"""Pure. Track which samples are pending, leased or trained.

The master's lease service calls this package. Start reading at job_ledger.py.
"""
