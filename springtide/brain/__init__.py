"""Plans resources for jobs and remembers past jobs, inside a master (`service.advisers`) or as a service.

Path of a request: `service.advisers` -> `service.service` -> `decide.triggers` (event, cause, policy) ->
`service.executor_pool` (runs the policy) -> `decide.cluster_state` (fits all jobs into the capacity) -> advice.
"""
