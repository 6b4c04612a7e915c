"""Plans resources for jobs and remembers past jobs, inside a master (`service.embedded`) or as a service.

Path of a request: `service.client` -> `service.service` -> `decide.triggers` (detects an event) -> `decide.algorithms`
(names the cause, picks the policy) -> `service.executor_pool` and `service.executor` (run the policy) ->
`decide.cluster_state` (fits all jobs into the capacity) -> advice. `store` keeps the history and the live jobs.
"""
