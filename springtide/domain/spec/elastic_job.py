"""Pure. Job specification that users write, identical for all platforms.

In: `launch.spec.spec_reader` reads it from YAML, a program builds it in Python, or a cluster stores it as the spec of
an `ElasticJob`. `domain.spec.schema` derives the schema from these classes. Only `script` is required. YAML names are
in `camelCase`. Out: `launch.spec.resolve` fills in missing values from the capacity of the platform.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from springtide import errors
from springtide.domain.core import resources, validation
from springtide.domain.core.validation import holds_numbers
from springtide.domain.data import data_workers as feeding
from springtide.domain.data.data_workers import Poison, SplitMode
from springtide.domain.model import tables
from springtide.domain.model.checkpoints import UPLOAD_EVERY_S
from springtide.domain.spec.job_spec import DEFAULT_SLOTS, RECOVERIES, SYNC_MODES, Recovery, SyncMode, check_name


@holds_numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class RoleWish:
    """How many of a role, and of what size; what is left open is planned."""

    count: int | None = None
    """So many, and no others: leaves no number to be planned."""
    min: int | None = None
    """Never fewer than that, where the number is planned."""
    max: int | None = None
    """Never more."""
    start: int | None = None
    """So many to begin with, where the number is planned; open: few, or as many as similar jobs ended with."""
    cpu: float | None = None
    """Cores of each, such as 0.5; open: planned."""
    memory: str | None = None
    """Memory of each, such as 4G; open: no limit, or what was found to be needed."""

    def __post_init__(self) -> None:
        low, high = self.min, self.max
        if self.count is not None and any(value is not None for value in (low, high, self.start)):
            raise errors.BadInput(
                f"count {self.count} beside min, max or start: give the number, or bounds for planning"
            )
        for name, value in (("count", self.count), ("min", low), ("max", high), ("start", self.start)):
            if value is not None and value < 1:
                raise errors.BadInput(f"{name} {value}: wanted 1 or more")
        if low is not None and high is not None and low > high:
            raise errors.BadInput(f"min {low}, max {high}: wanted no more at least than at most")
        if self.start is not None and not (low or 1) <= self.start <= (high or self.start):
            raise errors.BadInput(f"start {self.start}: wanted a number from {low or 1} to {high or 'any'}")
        resources.ProcessLimits(cpu=self.cpu, memory=self.memory_bytes)

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else resources.parse_memory(self.memory)


@holds_numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What workers and servers of the whole job may take at most; open: what the platform has."""

    cpu: float | None = None
    """Cores of all of them together."""
    memory: str | None = None
    """Memory of all of them together, such as 64G."""

    def __post_init__(self) -> None:
        if self.cpu is not None and not 0 < self.cpu < math.inf:
            raise errors.BadInput(f"cpu {self.cpu:g}, the quota: wanted cores of the whole job, above 0")
        if self.memory is not None and self.memory_bytes == 0:
            raise errors.BadInput(f"memory {self.memory}: wanted memory of the whole job, such as 64G")

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else resources.parse_memory(self.memory)


@holds_numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class TableWish:
    """What one embedding table is to be, over what the script says."""

    dtype: str | None = None
    """How a number of a row is kept: float32, float16 or bfloat16."""
    min_count: int | None = None
    """A row exists after so many gradients."""
    ttl: int | None = None
    """A row that is untouched for longer, in pushes, or seconds on a stream, goes; 0: never."""
    capacity_rows: int | None = None
    """Rows of the whole job at most; 0: no bound."""

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in tables.DTYPES:
            raise errors.UnknownName("dtype", self.dtype, tables.DTYPES)
        for name in ("min_count", "ttl", "capacity_rows"):
            if (getattr(self, name) or 0) < 0:
                raise errors.BadInput(f"{name} {getattr(self, name)}: wanted 0 or more")


@holds_numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWish:
    """Checkpoints: how often, and where they go."""

    every_s: float | None = None
    """Seconds between two; 0: never; open: 30."""
    folder: str = ""
    """A folder that all hosts of the job see; open: the run's own."""
    url: str = ""
    """Where they are copied to: any URL that fsspec knows."""
    upload_every_s: float = UPLOAD_EVERY_S
    """Seconds between two copies."""
    mirror: bool = False
    """Whether another server keeps a copy of each server's."""

    def __post_init__(self) -> None:
        if self.every_s is not None and not 0 <= self.every_s < math.inf:
            raise errors.BadInput(f"{self.every_s:g} seconds between checkpoints: wanted 0 (never) or more")
        if not 0 < self.upload_every_s < math.inf:
            raise errors.BadInput(f"{self.upload_every_s:g} seconds between uploads: wanted more than 0")


@holds_numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class FollowingWish:
    """A job that reads a stream: whether and how its workers follow the traffic."""

    on: bool = True
    """Whether workers come and go with the traffic; within `workers.min` and `workers.max`."""
    slo_lag: str = "20m"
    """A sample may wait so long before it is trained, such as 90s or 20m."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """How traffic is followed, such as `forecaster: mstl`."""
    metrics_port: int | None = None
    """Where figures for Prometheus are served; 0: a free port; open: nowhere."""
    export_to: str = ""
    """Where the model is exported to while it trains: a folder or URL; open: nowhere."""
    export_every: str = ""
    """How often it is exported, such as 90s; open: every 5 minutes."""

    def __post_init__(self) -> None:
        validation.parse_duration("slo_lag", self.slo_lag)
        if self.export_every:
            validation.parse_duration("export_every", self.export_every)
            if not self.export_to:
                raise errors.BadInput(
                    f"export_every {self.export_every}: no place for exports is given; give export_to too"
                )
        if self.metrics_port is not None and not 0 <= self.metrics_port <= 65535:
            raise errors.BadInput(f"metrics_port {self.metrics_port}: wanted 0 to 65535")


@holds_numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class PatienceWish:
    """How long others are waited for, and how often things are tried."""

    join_s: float = 300.0
    """Seconds until every first role must have joined."""
    silence_s: float = 30.0
    """Seconds after which a silent role counts as lost."""
    heartbeat_s: float = 1.0
    """Seconds between two heartbeats of a role."""
    grace_s: float = 30.0
    """Seconds that workers get to finish the batch in hand when the job is stopped."""
    disk_s: float = 600.0
    """Seconds that the job waits for a full disk under its run folder before it fails."""
    tries: int = 3
    """How often data that cannot be read is tried before the job fails."""

    def __post_init__(self) -> None:
        for name in ("join_s", "silence_s", "heartbeat_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise errors.BadInput(f"{name} {getattr(self, name):g}: wanted seconds, more than 0")
        if self.silence_s < 2 * self.heartbeat_s:
            raise errors.BadInput(
                f"silence_s {self.silence_s:g} (--silence) with heartbeat_s {self.heartbeat_s:g} (--heartbeat): every "
                "role would count as lost between two of its heartbeats; wait for two of them at least"
            )
        for name in ("grace_s", "disk_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise errors.BadInput(f"{name} {getattr(self, name):g}: wanted seconds, 0 or more")
        if self.tries < 1:
            raise errors.BadInput(f"tries {self.tries}: wanted 1 or more")


StartMode = Literal["one-by-one", "gang"]
START_MODES: tuple[StartMode, ...] = ("one-by-one", "gang")


@holds_numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class RunVolume:
    """Where a Kubernetes job keeps its journal and its checkpoints."""

    claim: str = ""
    """A PersistentVolumeClaim that is there already."""
    size: str = ""
    """Or one is made for the job, of this size, such as 20Gi; neither: it lasts as long as the pod."""
    storage_class: str = ""
    """Of the claim that is made; open: the cluster's default."""
    shared: bool = False
    """Whether all pods of the job mount it (ReadWriteMany), servers for their checkpoints too."""

    def __post_init__(self) -> None:
        if self.claim and self.size:
            raise errors.BadInput(f"claim {self.claim} beside size {self.size}: give one that is there, or a size")


@holds_numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesWish:
    """What only a Kubernetes cluster needs to know. Fields without a word of ours are passed through to pods."""

    service_account: str = ""
    """Of workers, servers and data workers, which need no rights; open: the namespace's default one, without token."""
    priority_class: str = ""
    """PriorityClass of all pods of the job."""
    low_priority_class: str = ""
    """PriorityClass of workers beyond the quota."""
    scheduler_name: str = ""
    """Who finds nodes for the pods; open: the cluster's own scheduler."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that a node must have."""
    tolerations: tuple[Mapping[str, Any], ...] = ()
    """Taints of nodes that do not matter."""
    affinity: Mapping[str, Any] = field(default_factory=dict)
    """Which nodes and which neighbours pods want."""
    volumes: tuple[Mapping[str, Any], ...] = ()
    """Volumes of every pod."""
    volume_mounts: tuple[Mapping[str, Any], ...] = ()
    """Where these are mounted."""
    environment_secrets: tuple[str, ...] = ()
    """Names of Secrets whose entries are environment variables of every pod, such as keys for object stores."""
    image_pull_secrets: tuple[str, ...] = ()
    """Names of secrets for the image's registry."""
    image_pull_policy: str = ""
    """Always, IfNotPresent or Never; open: as the cluster does by default."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """More labels of every pod."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """More annotations of every pod."""
    run_volume: RunVolume = field(default_factory=RunVolume)
    """Where the job keeps its journal and its checkpoints."""
    start: StartMode = "one-by-one"
    """gang: nobody trains before all first pods are there; one-by-one: whoever is there begins."""
    pending_s: float = 300.0
    """A pod that no node takes for so long is given up: the job goes on smaller, and says so."""
    resize_s: float = 60.0
    """Another size that its node puts off for so long (`Deferred`) is had elsewhere: the pod is replaced."""
    grace_s: int = 30
    """What an evicted pod gets to end by itself: workers finish a batch, servers hand slots over."""
    tls: bool = True
    """Mutual TLS between all roles, by certificates of the job's own authority."""
    keep_s: int | None = None
    """Seconds after its end until the job is deleted; open: never."""

    def __post_init__(self) -> None:
        if self.start not in START_MODES:
            raise errors.UnknownName("way to start", self.start, START_MODES)
        for name, seconds in (("pending_s", self.pending_s), ("resize_s", self.resize_s)):
            if not 0 < seconds < math.inf:
                raise errors.BadInput(f"{name} {seconds:g}: wanted seconds, more than 0")
        if self.grace_s < 0 or (self.keep_s or 0) < 0:
            raise errors.BadInput(f"grace_s {self.grace_s}, keep_s {self.keep_s}: wanted seconds, 0 or more")


@holds_numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class RayWish:
    """What only a Ray cluster needs to know."""

    resources: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By role (worker, server, data-worker, master): custom resources that a node must have for it."""
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    """pip, env_vars, ... over what Springtide ships by itself."""
    run_folder: str = ""
    """Journal, story and checkpoints: a folder that all nodes see outlives the node where the job is kept."""
    pending_s: float = 120.0
    """A role that no node takes for so long is given up: the job goes on smaller, and says so."""
    tls: bool = False
    """Mutual TLS between all roles, by certificates of the job's own authority."""

    def __post_init__(self) -> None:
        if not 0 < self.pending_s < math.inf:
            raise errors.BadInput(f"pending_s {self.pending_s:g}: wanted seconds, more than 0")


@holds_numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticJob:
    """One job. `name` is `metadata.name` in YAML; all others are fields of `spec`. Only `script` must be given."""

    name: str = ""
    """What it is called; open: made from the script's name."""
    script: str
    """The training script, within the working folder."""
    arguments: tuple[str, ...] = ()
    """Arguments of the script."""
    working_dir: str = ""
    """Local folder with the code, to be shipped; open: that of the spec's file, unless an image has the code."""
    image: str = ""
    """On Kubernetes: what pods run; open: Springtide's own."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the job's processes, such as keys for object stores."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Names to paths or URLs: `job.data["train"]` in the script."""
    tables: Mapping[str, TableWish] = field(default_factory=dict)
    """Embedding tables by name, where they are to be other than the script says."""
    workers: RoleWish = field(default_factory=RoleWish)
    """Processes that run the script."""
    servers: RoleWish = field(default_factory=RoleWish)
    """Parameter servers."""
    data_workers: str = "auto"
    """Processes that make batches for workers: auto, off or a number."""
    data_worker_cpu: float | None = None
    """Cores of each of them; open: found out."""
    split: SplitMode = "auto"
    """What of the model's forward() needs no parameters: done by data workers (auto), by others of them than those
    that read the data set (stages), by data workers and by workers too, which compare (verify), or by workers (off)."""
    poison: Poison = "fail"
    """A sample cannot be made: fail, or skip it and report it."""
    quota: Quota = field(default_factory=Quota)
    """What the whole job may take at most."""
    priority: float = 1.0
    """Among the jobs of one brain whose setting `priority` is `given`: what its gain counts for."""
    sync: SyncMode = "async"
    """async: each worker at its own pace; bsp: in step."""
    cache: str = "auto"
    """Rows that a worker keeps: a size, a share such as 10%, auto or off."""
    cache_staleness: int | None = None
    """async: trainings by others that a kept row may lack; open: 10."""
    allocation: str = ""
    """bsp: who trains which sample; open: where its rows are."""
    seed: int = 0
    """Seed of shuffles and of untrained rows."""
    slots: int = DEFAULT_SLOTS
    """Parts of the key space, a power of two."""
    recovery: Recovery = "exact"
    """A server is lost: train its part again (exact), or not (partial)."""
    relaunches: int = 5
    """How often a role that fails is started again."""
    patience: PatienceWish = field(default_factory=PatienceWish)
    """How long others are waited for."""
    guards: bool = True
    """Whether servers are added, relieved and replaced where they need it."""
    stragglers: Mapping[str, float] = field(default_factory=dict)
    """When a worker counts as slow, such as `window: 20`."""
    checkpoints: CheckpointWish = field(default_factory=CheckpointWish)
    """How often checkpoints are made, and where they go."""
    resume: str = ""
    """A run's folder or URL of checkpoints to go on from."""
    following: FollowingWish = field(default_factory=FollowingWish)
    """On a stream: how workers follow its traffic."""
    plan: bool | None = None
    """Whether the job finds its size by itself; open: if a number of workers or servers is."""
    planning: Mapping[str, str] = field(default_factory=dict)
    """How it is planned, such as `sample_s: 10`."""
    brain: str = ""
    """host:port of a brain that plans for many jobs; open: this job's master plans by itself."""
    history: str | None = None
    """File or SQL URL of past jobs, by which similar ones begin; empty: none; open: the one beside the runs."""
    stopped: bool = False
    """Drain the job and leave it; `springtide stop` sets it where a cluster keeps the spec."""
    kubernetes: KubernetesWish = field(default_factory=KubernetesWish)
    """What only a Kubernetes cluster needs to know."""
    ray: RayWish = field(default_factory=RayWish)
    """What only a Ray cluster needs to know."""

    def __post_init__(self) -> None:
        if not self.script.strip():
            raise errors.BadInput("script: wanted the training script, such as train.py")
        if self.name:
            check_name(self.name)
        validation.number(self.seed, "seed", validation.SEED)
        if self.sync not in SYNC_MODES:
            raise errors.UnknownName("sync mode", self.sync, SYNC_MODES)
        if self.recovery not in RECOVERIES:
            raise errors.UnknownName("recovery", self.recovery, RECOVERIES)
        if self.slots < 64 or self.slots & (self.slots - 1):
            raise errors.BadInput(f"slots {self.slots}: wanted a power of two, 64 or more")
        if self.relaunches < 0:
            raise errors.BadInput(f"relaunches {self.relaunches}: wanted 0 or more")
        if not 0 < self.priority < math.inf:
            raise errors.BadInput(f"priority {self.priority:g}: wanted a weight above 0, such as 2")
        if self.data_worker_cpu is not None and not 0 < self.data_worker_cpu < math.inf:
            raise errors.BadInput(f"data_worker_cpu {self.data_worker_cpu:g}: wanted cores, more than 0")
        feeding.number_of(self.data_workers)
        feeding.split_of(self.split)
        feeding.poison_of(self.poison)
