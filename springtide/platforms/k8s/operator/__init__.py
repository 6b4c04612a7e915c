"""Operator: one process per cluster that creates a master for every ElasticJob, and the pods that masters want.

`lifecycle` and `pod_plan` decide, purely. `executor` acts. `work_queue` orders jobs. `process` receives changes through
kopf. The operator keeps no state: everything is in the cluster.
"""
