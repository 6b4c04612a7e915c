"""The operator: one process per cluster that creates a master for every ElasticJob, and the pods that masters want.

`lifecycle` and `pod_plan` decide, purely; `executor` acts; `work_queue` orders jobs; `process` hears of changes through
kopf. It keeps no state: all it needs is in the cluster.
"""
