"""The operator: one process for a cluster, which makes a master for every ElasticJob and pods of what masters want.

`decide` says what is to be done for one job, purely; `doing` does it; `desk` keeps one job after the other in order;
`running` hears of changes through kopf. It remembers nothing: all it needs to know is in the cluster.
"""
