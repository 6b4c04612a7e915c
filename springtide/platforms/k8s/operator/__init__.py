"""Operator: one process per cluster that creates a master for every ElasticJob, and the pods that masters want.

`lifecycle` and `pod_plan` are pure and decide; `executor` acts; `process` watches. All state is in the cluster.
"""
