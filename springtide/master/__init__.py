"""The job master: one asyncio process that grants leases, tracks members and reports the job's status.

Reading order: `main` starts the process, `dispatcher` answers requests, `core.waiters` holds requests that wait,
`core.progress` sums reports. `job.state` and `data.ledger.job_ledger` make the decisions and do no I/O.
"""
