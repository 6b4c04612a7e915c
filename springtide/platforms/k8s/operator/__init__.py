"""Operator: one process per cluster that creates a master for every ElasticJob, and the pods that masters want.

`lifecycle` and `pod_plan` are pure and make the decisions, `executor` carries them out, and `process` watches the
cluster. All state is in the cluster.
"""
