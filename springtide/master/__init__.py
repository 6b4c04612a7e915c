"""The job master: one asyncio process that grants leases, tracks members and reports the job's status.

Reading order: `main`, `dispatcher`, `handlers`, `core.context`. `job.state` and `data.ledger.job_ledger` decide.
"""
