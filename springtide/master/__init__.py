"""The job master: one asyncio process that grants leases, tracks members and reports the job's status.

Reading order: `main`, `dispatcher`, `handlers`, `core.context`. The decisions are in `job.state` and
`data.ledger.job_ledger`.
"""
