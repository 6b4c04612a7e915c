"""Pure. All that an agent must know to run a job. In: `launch.spec.resolve`, and tests. Next:
`platforms.agent.agent`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from springtide.domain.spec.job_spec import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One job on one platform."""

    spec: JobSpec
    script: str
    arguments: tuple[str, ...] = ()
    threads_per_worker: int = 1
    host: str = "127.0.0.1"
    """Where the master listens; 0.0.0.0 or ::: at all addresses of its host."""
    port: int = 0
    """The master's port; 0 takes a free one."""
    advertise: str = ""
    """Name or address by which the others reach the master. Empty: `host`, or its host's own where that says all."""
    secret_file: str = ""
    """A file with the job's secret that is there already. Empty: one is drawn, and removed in the end."""
    adopt: bool = False
    """Whether an agent may have run this job before: what that one has left running is taken over."""
    report_usage: bool = False
    """Whether roles measure themselves, because the agent cannot: they are on other hosts."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the user wants every process to have."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """More settings of processes with the user's code: see `domain.spec.script_settings`."""
    grace_s: float = 30.0
    """How long workers may take to finish the batch in hand, and to leave after the job's end."""
    debug: bool = False
    tls: bool = False
    """Whether all roles speak by TLS, with certificates that are made for this run and lie in its folder."""
