"""Pure. What a job looks after by itself, and when.

In: the command line, by `domain.spec.job_spec.JobSpec`. Next: `planning.guards.oom` and `planning.guards.hot_servers`,
asked by `master.servers.guards`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardRules:
    """When servers are added, relieved or replaced without being asked for."""

    memory: bool = True
    """Add servers before their memory runs out, where it has a limit."""
    servers: bool = True
    """Move load away from a hot server, replace a slow one."""
    slower: float = 3.0
    """So many times its peers' time a key is slow."""
    far_slower: float = 10.0
    """So many times it, by each of the last two reports, is so slow that nothing more is waited for: its slots go to
    its peers at once, and from there to the server that takes its place."""
    throttled: float = 0.6
    """Of the time: a server whose quota was used up in so many of its periods, and that had so little in them..."""
    given: float = 0.5
    """...of the processors that it is to have, is held up by its machine for certain: the kernel has counted it."""
    hotter: float = 1.3
    """So many times its peers' keys a second is more load."""
    at_work: float = 0.15
    """Of the time: a server whose tables are at work for less holds nobody up, whatever its peers do."""
    busy: float = 0.8
    """Of its CPU: above that it has none to spare."""
    most_cpu: float = 32.0
    """Processors that a hot server is given at most, where its platform can change a limit."""
    window_s: float = 5.0
    """Servers are compared by what they did in the last seconds."""
    times: int = 3
    """So many looks in a row must agree before something is done."""
