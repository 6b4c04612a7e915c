"""The job master: one asyncio process that hands out shards, counts members and says how the job is.

A walk: `main` starts, `desk` answers requests, `meetings` lets workers wait for one another, `tally` adds reports up.
What to do is decided in `job.state` and `data.ledger.job_ledger`, which do no I/O.
"""
