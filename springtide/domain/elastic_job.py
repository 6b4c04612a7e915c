"""Pure. A job as its user writes it down, the same for every platform: what to run, and whatever else they care to say.

In: `launch.reading` reads it from YAML, line by line; a program makes it in Python; a cluster has it as the spec of an
`ElasticJob`, whose schema is made from these classes. Only `script` is asked for. Out: `launch.resolving` fills in what
is open, by what the platform has to give. In YAML names are written `likeThis`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from springtide import errors
from springtide.domain.job import DEFAULT_SLOTS, Recovery, SyncMode


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleWish:
    """How many of a role, and of what size; what is left open is planned."""

    count: int | None = None
    """So many, and no others; leaves nothing to be planned."""
    min: int | None = None
    max: int | None = None
    cpu: float | None = None
    """Cores of each."""
    memory: str | None = None
    """Of each, such as 4G."""

    def __post_init__(self) -> None:
        low, high = self.min, self.max
        if self.count is not None and (low is not None or high is not None):
            raise errors.BadInput(f"count {self.count} beside min or max: give the number, or bounds for planning")
        for name, value in (("count", self.count), ("min", low), ("max", high)):
            if value is not None and value < 1:
                raise errors.BadInput(f"{name} {value}: wanted 1 or more")
        if low is not None and high is not None and low > high:
            raise errors.BadInput(f"min {low}, max {high}: wanted no more at least than at most")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What the whole job may take at most; open: what the platform has."""

    cpu: float | None = None
    memory: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWish:
    """What one embedding table is to be, over what the script says."""

    dtype: str | None = None
    min_count: int | None = None
    """A row exists after so many gradients."""
    ttl: int | None = None
    """A row that is untouched for longer, in pushes, or seconds on a stream, goes."""
    capacity_rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """Checkpoints."""

    every_s: float | None = None
    """Seconds; 0: never; open: 30."""
    folder: str = ""
    """A folder that all hosts of the job see; open: the run's own."""
    url: str = ""
    """Where they are copied to: any URL that fsspec knows."""
    upload_every_s: float = 600.0
    mirror: bool = False
    """Another server keeps a copy of each server's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """A job that reads a stream: whether and how its workers follow the traffic."""

    on: bool = True
    slo_lag: str = "20m"
    """A sample may wait so long."""
    settings: Mapping[str, str] = field(default_factory=dict)
    metrics_port: int | None = None
    export_to: str = ""
    export_every: str = "5m"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVolume:
    """Where a Kubernetes job keeps its journal and its checkpoints."""

    claim: str = ""
    """A PersistentVolumeClaim that is there already."""
    size: str = ""
    """Or one is made for the job, of this size, such as 20Gi; neither: it lasts as long as the pod."""
    storage_class: str = ""
    shared: bool = False
    """Whether all pods of the job mount it (ReadWriteMany), servers for their checkpoints too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesWish:
    """What only a Kubernetes cluster needs to know. Fields without a word of ours are passed through to pods."""

    service_account: str = ""
    """Of workers, servers and data workers, which need no rights; open: the namespace's default one, without token."""
    priority_class: str = ""
    low_priority_class: str = ""
    """Of workers beyond the quota."""
    scheduler_name: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    affinity: Mapping[str, Any] = field(default_factory=dict)
    volumes: tuple[Mapping[str, Any], ...] = ()
    volume_mounts: tuple[Mapping[str, Any], ...] = ()
    image_pull_secrets: tuple[str, ...] = ()
    image_pull_policy: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    run_volume: RunVolume = field(default_factory=RunVolume)
    start: str = "one-by-one"
    """gang: nobody trains before all first pods are there; one-by-one: whoever is there begins."""
    pending_s: float = 300.0
    """A pod that no node takes for so long is given up: the job goes on smaller, and says so."""
    grace_s: int = 30
    """What an evicted pod gets to end by itself: workers finish a batch, servers hand slots over."""
    tls: bool = True
    """Mutual TLS between all roles, by certificates of the job's own authority."""
    keep_s: int | None = None
    """Seconds after its end until the job is deleted; open: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayWish:
    """What only a Ray cluster needs to know."""

    resources: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By role (worker, server, data-worker, master): custom resources that a node must have for it."""
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    """pip, env_vars, ... over what Springtide ships by itself."""
    run_folder: str = ""
    """Journal, story and checkpoints: a folder that all nodes see outlives the node where the job is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticJob:
    """One job. `name` is `metadata.name` in YAML; all others are fields of `spec`."""

    name: str = ""
    """Open: made from the script's name."""
    script: str
    arguments: tuple[str, ...] = ()
    working_dir: str = ""
    """Local folder with the code, to be shipped; open: that of the spec's file, unless an image has the code."""
    image: str = ""
    """On Kubernetes: what pods run; open: Springtide's own."""
    environment: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    """Names to paths or URLs: `job.data["train"]` in the script."""
    tables: Mapping[str, TableWish] = field(default_factory=dict)
    workers: RoleWish = field(default_factory=RoleWish)
    servers: RoleWish = field(default_factory=RoleWish)
    data_workers: str = "auto"
    """auto, off or a number."""
    quota: Quota = field(default_factory=Quota)
    priority: int = 0
    """Among the jobs of one brain: higher is served first."""
    sync: SyncMode = "async"
    cache: str = "auto"
    seed: int = 0
    slots: int = DEFAULT_SLOTS
    recovery: Recovery = "exact"
    relaunches: int = 5
    checkpoints: Keeping = field(default_factory=Keeping)
    resume: str = ""
    """A run's folder or URL of checkpoints to go on from."""
    following: Following = field(default_factory=Following)
    brain: str = ""
    """host:port of a brain that plans for many jobs; open: this job's master plans by itself."""
    planning: Mapping[str, str] = field(default_factory=dict)
    stopped: bool = False
    """Drain the job and leave it; `springtide stop` sets it where a cluster keeps the spec."""
    kubernetes: KubernetesWish = field(default_factory=KubernetesWish)
    ray: RayWish = field(default_factory=RayWish)

    def __post_init__(self) -> None:
        if not self.script:
            raise errors.BadInput("script: wanted the training script, such as train.py")
