"""Pure. Job specification that users write, identical for all platforms.

`domain.spec.schema` derives the YAML form with names in `camelCase`. `launch.spec.resolve` fills in missing values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from springtide import errors
from springtide.domain.core import resources, validation
from springtide.domain.core.validation import holds_numbers
from springtide.domain.data import data_workers as data_worker_rules
from springtide.domain.data.data_workers import Poison, SplitMode
from springtide.domain.model import tables
from springtide.domain.model.checkpoints import UPLOAD_EVERY_S
from springtide.domain.spec.job_spec import (
    DEFAULT_SLOTS,
    RECOVERIES,
    SYNC_MODES,
    Patience,
    Recovery,
    SyncMode,
    check_name,
)
from springtide.domain.spec.tracker_target import parse_targets

LEAST_GPU = 0.01
"""Smallest share of a GPU, because each process on a GPU takes some 500 MB of its memory before it trains."""


@holds_numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class RoleWish:
    """Number and size of the processes of one role. Springtide plans the fields that are not set."""

    count: int | None = None
    """Fixed number of processes, which is not planned."""
    min: int | None = None
    """Smallest planned number."""
    max: int | None = None
    """Largest planned number."""
    start: int | None = None
    """First number, if the number is planned. Default: a few, or the final number of similar jobs."""
    cpu: float | None = None
    """Cores of each process, such as 0.5. Default: planned."""
    memory: str | None = None
    """Memory of each process, such as 4G. Default: no limit, or the measured need."""
    gpu: float | None = None
    """GPU of each worker: 1, 0 for none, or a share of one GPU such as 0.5, so that workers share it. Default: on this
    machine, the workers share its GPUs; on a cluster, none.
    """

    def __post_init__(self) -> None:
        low, high = self.min, self.max
        if self.count is not None and any(value is not None for value in (low, high, self.start)):
            raise errors.BadInput(
                f"count {self.count} beside min, max or start: give the number, or bounds for planning"
            )
        validation.check_range(self, "count", "min", "max", "start", least=1)
        if low is not None and high is not None and low > high:
            raise errors.BadInput(f"min {low}: must not be above max, {high}")
        if self.start is not None and not (low or 1) <= self.start <= (high or self.start):
            raise errors.BadInput(f"start {self.start}: must be a number from {low or 1} to {high or 'any'}")
        resources.ProcessLimits(cpu=self.cpu, memory=self.memory_bytes)
        if self.gpu is not None and not (self.gpu == 0 or LEAST_GPU <= self.gpu <= 1):
            raise errors.BadInput(
                f"gpu {self.gpu:g}: a worker trains on one GPU; give 1, 0 for none, or a share from {LEAST_GPU:g} such "
                "as 0.5. For more GPUs, ask for more workers"
            )

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else resources.parse_memory(self.memory)


@holds_numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Most resources of all workers and servers together. Default: all of the platform."""

    cpu: float | None = None
    """Cores of all workers and servers together."""
    memory: str | None = None
    """Memory of all workers and servers together, such as 64G."""
    gpu: int | None = None
    """GPUs of all workers together, one for each worker unless `workers.gpu` says otherwise; 0 trains on the CPU.
    Default: all of this machine, which the workers share."""

    def __post_init__(self) -> None:
        validation.check_range(self, "cpu", above=0, unit="cores of the whole job")
        validation.check_range(self, "gpu", least=0, unit="GPUs of the whole job")
        if self.memory is not None and self.memory_bytes == 0:
            raise errors.BadInput(f"memory {self.memory}: expected the memory of the whole job, such as 64G")

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else resources.parse_memory(self.memory)


def gpu_of(workers: RoleWish, quota: Quota) -> float | None:
    """Return the GPU of each worker: 1 if the job has GPUs without a share for each worker, None if the spec mentions
    no GPUs.
    """
    if workers.gpu is None and quota.gpu is not None:
        return 1.0 if quota.gpu else 0.0
    return workers.gpu


@holds_numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class TableWish:
    """Settings of one embedding table, which override the settings in the script."""

    dtype: str | None = None
    """Type of the numbers in a row: float32, float16 or bfloat16."""
    min_count: int | None = None
    """Number of gradients after which a row is created."""
    ttl: int | None = None
    """Evict a row that is unused for this many pushes, or seconds on a stream; 0 means never."""
    capacity_rows: int | None = None
    """Maximum number of rows in the whole job; 0 means no limit."""

    def __post_init__(self) -> None:
        if self.dtype is not None:
            validation.choice(self.dtype, "dtype", tables.DTYPES)
        validation.check_range(self, "min_count", "ttl", "capacity_rows", least=0)


@holds_numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWish:
    """Interval and location of checkpoints."""

    every_s: float | None = None
    """Seconds between two checkpoints; 0 means never. Default: 30."""
    folder: str = ""
    """Folder for checkpoints, which all hosts of the job can access. Default: the run folder."""
    url: str = ""
    """Upload checkpoints to this URL, of any kind that fsspec supports."""
    upload_every_s: float = UPLOAD_EVERY_S
    """Seconds between two uploads."""
    mirror: bool = False
    """Keep a copy of each server's files on another server."""

    def __post_init__(self) -> None:
        validation.check_range(self, "every_s", least=0, unit="seconds between checkpoints")
        validation.check_range(self, "upload_every_s", above=0, unit="seconds between uploads")


@holds_numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class FollowingWish:
    """Scaling of a job that reads a stream."""

    on: bool = True
    """Scale the number of workers with the traffic, between `workers.min` and `workers.max`."""
    slo_lag: str = "20m"
    """Longest time from arrival to training of a sample, such as 90s or 20m."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the autoscaler, such as `forecaster: last-week`."""
    metrics_port: int | None = None
    """Port for Prometheus metrics; 0 means any free port. Default: no metrics."""
    export_to: str = ""
    """Folder or URL for exports of the model during training. Default: no exports."""
    export_every: str = ""
    """Time between two exports, such as 90s. Default: 5 minutes."""

    def __post_init__(self) -> None:
        validation.parse_duration("slo_lag", self.slo_lag)
        if self.export_every:
            validation.parse_duration("export_every", self.export_every)
            if not self.export_to:
                raise errors.BadInput(
                    f"export_every {self.export_every}: export_to is missing; give the place for exports"
                )
        if self.metrics_port is not None and not 0 <= self.metrics_port <= 65535:
            raise errors.BadInput(f"metrics_port {self.metrics_port}: must be 0 to 65535")


@holds_numbers
@dataclass(frozen=True, kw_only=True)
class PatienceWish(Patience):
    """Timeouts and number of tries."""

    grace_s: float = 30.0
    """Seconds that workers have to finish their batch when the job is stopped."""

    def __post_init__(self) -> None:
        validation.check_range(self, "join_s", "silence_s", "heartbeat_s", above=0, unit="seconds")
        validation.check_range(self, "grace_s", "disk_s", least=0, unit="seconds")
        validation.check_range(self, "tries", least=1)
        if self.silence_s < 2 * self.heartbeat_s:
            raise errors.BadInput(
                f"silence_s {self.silence_s:g} (--silence) with heartbeat_s {self.heartbeat_s:g} (--heartbeat): every "
                f"role would count as lost between two heartbeats; silence_s must be at least two heartbeats"
            )


StartMode = Literal["one-by-one", "gang"]
START_MODES: tuple[StartMode, ...] = ("one-by-one", "gang")


@holds_numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class RunVolume:
    """Volume for the journal and the checkpoints of a Kubernetes job."""

    claim: str = ""
    """Name of an existing PersistentVolumeClaim."""
    size: str = ""
    """Create a claim of this size, such as 20Gi. Without `claim` and `size`, the data lasts as long as the pod."""
    storage_class: str = ""
    """StorageClass of the created claim. Default: the cluster's default StorageClass."""
    shared: bool = False
    """Mount the volume in all pods of the job (ReadWriteMany), so that servers write their checkpoints to it."""

    def __post_init__(self) -> None:
        if self.claim and self.size:
            raise errors.BadInput(
                f"claim {self.claim} beside size {self.size}: give either an existing claim or a size"
            )


@dataclass(frozen=True, kw_only=True)
class PodOptions:
    """Options that Kubernetes itself defines for pods."""

    service_account: str = ""
    """ServiceAccount of workers, servers and data workers. The account needs no rights. Default: the namespace's
    default account, without token.
    """
    priority_class: str = ""
    """PriorityClass of all pods of the job."""
    scheduler_name: str = ""
    """Scheduler of the pods. Default: the cluster's default scheduler."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that a node must have."""
    tolerations: tuple[Mapping[str, Any], ...] = ()
    """Tolerated taints of nodes."""
    affinity: Mapping[str, Any] = field(default_factory=dict)
    """Affinity of the pods to nodes and to other pods."""
    volumes: tuple[Mapping[str, Any], ...] = ()
    """Volumes of every pod."""
    volume_mounts: tuple[Mapping[str, Any], ...] = ()
    """Mount points of the volumes."""
    environment_secrets: tuple[str, ...] = ()
    """Names of Secrets whose entries are environment variables of every pod, such as keys for object stores."""
    image_pull_secrets: tuple[str, ...] = ()
    """Names of secrets for the image's registry."""
    image_pull_policy: str = ""
    """Always, IfNotPresent or Never. Default: the cluster's default."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Additional labels of every pod."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Additional annotations of every pod."""


@holds_numbers
@dataclass(frozen=True, kw_only=True)
class KubernetesWish(PodOptions):
    """Options for Kubernetes only. Fields with Kubernetes names are passed to the pods."""

    run_volume: RunVolume = field(default_factory=RunVolume)
    """Volume for the journal and the checkpoints."""
    start: StartMode = "one-by-one"
    """gang: training starts when all first pods run; one-by-one: each worker starts when its pod runs."""
    pending_s: float = 300.0
    """Give up a pod that is pending for this many seconds. The job continues smaller, and reports it."""
    resize_s: float = 60.0
    """Replace a pod whose node defers its resize for this many seconds."""
    grace_s: int = 30
    """Seconds that an evicted pod has to end: workers finish a batch, servers hand over their slots."""
    tls: bool = True
    """Mutual TLS between all roles, with certificates of a CA of the job."""
    keep_s: int | None = None
    """Delete the job this many seconds after its end. Default: never."""

    def __post_init__(self) -> None:
        validation.choice(self.start, "way to start", START_MODES)
        validation.check_range(self, "pending_s", "resize_s", above=0, unit="seconds")
        validation.check_range(self, "grace_s", "keep_s", least=0, unit="seconds")


@holds_numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class RayWish:
    """Options for Ray only."""

    resources: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Custom resources that a node must have, by role (worker, server, data-worker, master)."""
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    """Additions to the runtime environment of Springtide, such as pip or env_vars."""
    run_folder: str = ""
    """Folder for journal, events and checkpoints. If all nodes can access it, the job survives the loss of a node."""
    pending_s: float = 120.0
    """Give up a role that no node takes for this many seconds. The job continues smaller, and reports it."""
    tls: bool = False
    """Mutual TLS between all roles, with certificates of a CA of the job."""

    def __post_init__(self) -> None:
        validation.check_range(self, "pending_s", above=0, unit="seconds")


@dataclass(frozen=True, kw_only=True)
class ProgramWish:
    """Program of a job, and its data."""

    name: str = ""
    """Name of the job. Default: made from the name of the script."""
    script: str
    """Training script, relative to the working folder."""
    arguments: tuple[str, ...] = ()
    """Arguments of the script."""
    working_dir: str = ""
    """Local folder with the code, which is shipped to the job. Default: the folder of the spec file, unless an image is
    given."""
    image: str = ""
    """Image of the pods on Kubernetes. Default: the image of Springtide."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the job's processes, such as keys for object stores."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Paths or URLs by name. The script reads them as `job.data["train"]`."""
    tables: Mapping[str, TableWish] = field(default_factory=dict)
    """Settings of embedding tables by name, which override the settings in the script."""
    log_to: str = ""
    """Experiment trackers, separated by commas: tensorboard, wandb or mlflow, each with its place if needed, such as
    mlflow:http://10.0.0.5:5000."""

    def __post_init__(self) -> None:
        parse_targets(self.log_to)
        if not self.script.strip():
            raise errors.BadInput("script: give the training script, such as train.py")
        if self.name:
            check_name(self.name)


@dataclass(frozen=True, kw_only=True)
class SizeWish:
    """Number and size of a job's processes, and the work of data workers."""

    workers: RoleWish = field(default_factory=RoleWish)
    """Workers: processes that run the script."""
    servers: RoleWish = field(default_factory=RoleWish)
    """Parameter servers."""
    data_workers: str = "auto"
    """Number of data workers, which prepare batches: auto, off or a number."""
    data_worker_cpu: float | None = None
    """Cores of each data worker. Default: tuned."""
    split: SplitMode = "auto"
    """Where the part of forward() without parameters runs. auto: in data workers. stages: in separate data workers,
    behind those that read. verify: in data workers and in workers, which compare the results. off: in workers.
    """
    poison: Poison = "fail"
    """Handling of an unreadable sample: fail the job, or skip the sample and report it."""
    quota: Quota = field(default_factory=Quota)
    """Most resources of the whole job."""
    priority: float = 1.0
    """Weight of the job among the jobs of one brain, if the planning setting `priority` is `given`."""

    def __post_init__(self) -> None:
        validation.check_range(self, "priority", above=0)
        validation.check_range(self, "data_worker_cpu", above=0, unit="cores")
        if self.servers.gpu is not None:
            raise errors.BadInput(
                f"servers.gpu {self.servers.gpu:g}: servers keep rows in CPU memory and use no GPU; give workers.gpu"
            )
        data_worker_rules.number_of(self.data_workers)
        validation.choice(self.split, "split", data_worker_rules.SPLITS)
        validation.choice(self.poison, "policy", data_worker_rules.POISONS)


@dataclass(frozen=True, kw_only=True)
class TrainingWish:
    """How workers train together."""

    sync: SyncMode = "async"
    """async: workers train independently; bsp: all workers train each step together."""
    cache: str = "auto"
    """Size of each worker's row cache: bytes, a share of the table such as 10%, auto or off."""
    cache_staleness: int | None = None
    """Most updates by other workers that a cached row may miss in async mode. Default: 10."""
    allocation: str = ""
    """Assignment of samples to workers in bsp mode. Default: to the worker that caches their rows."""
    seed: int = 0
    """Seed of shuffling and of initial rows."""
    slots: int = DEFAULT_SLOTS
    """Number of slots of the key space, a power of two."""

    def __post_init__(self) -> None:
        validation.number(self.seed, "seed", validation.SEED)
        validation.choice(self.sync, "sync mode", SYNC_MODES)
        if self.slots < 64 or self.slots & (self.slots - 1):
            raise errors.BadInput(f"slots {self.slots}: must be a power of two, 64 or more")


@dataclass(frozen=True, kw_only=True)
class RecoveryWish:
    """Handling of lost, late and slow processes."""

    recovery: Recovery = "exact"
    """Handling of a lost server: train its lost updates again (exact), or continue without them (partial)."""
    relaunches: int = 5
    """Maximum number of relaunches of a failed role."""
    patience: PatienceWish = field(default_factory=PatienceWish)
    """Timeouts and number of tries."""
    guards: bool = True
    """Add, relieve and replace servers automatically."""
    stragglers: Mapping[str, float] = field(default_factory=dict)
    """Thresholds for stragglers, such as `window: 20`."""
    checkpoints: CheckpointWish = field(default_factory=CheckpointWish)
    """Interval and location of checkpoints."""
    resume: str = ""
    """Run folder or checkpoint URL from which the job continues."""
    continue_from: str = ""
    """Run folder or checkpoint URL with whose model the job trains new data."""

    @property
    def origin(self) -> str:
        """Run folder or URL from which the job takes its model; empty for a new model."""
        return self.resume or self.continue_from

    def __post_init__(self) -> None:
        if self.resume and self.continue_from:
            raise errors.BadInput(
                f"resume {self.resume} (--resume) and continueFrom {self.continue_from} (--continue-from): give one. "
                "resume trains the rest of the same data, continueFrom trains new data"
            )
        validation.choice(self.recovery, "recovery", RECOVERIES)
        validation.check_range(self, "relaunches", least=0)


# The last base class comes first, because a dataclass lists the fields of its last base first.
@holds_numbers
@dataclass(frozen=True, kw_only=True)
class ElasticJob(RecoveryWish, TrainingWish, SizeWish, ProgramWish):
    """A job. In YAML, `name` is `metadata.name`, and the other fields are in `spec`. Only `script` is required."""

    following: FollowingWish = field(default_factory=FollowingWish)
    """Scaling of a job that reads a stream."""
    plan: bool | None = None
    """Plan the size of the job. Default: true if the number of workers or servers is not fixed."""
    planning: Mapping[str, str] = field(default_factory=dict)
    """Planning settings, such as `sample_s: 10`."""
    brain: str = ""
    """host:port of a brain that plans for many jobs. Default: the master of the job plans."""
    history: str | None = None
    """File or SQL URL of past jobs, for the first size of similar jobs. Empty: no history. Default: the file beside the
    runs."""
    stopped: bool = False
    """Drain and stop the job. `springtide stop` sets it on Kubernetes."""
    kubernetes: KubernetesWish = field(default_factory=KubernetesWish)
    """Options for Kubernetes only."""
    ray: RayWish = field(default_factory=RayWish)
    """Options for Ray only."""

    def __post_init__(self) -> None:
        ProgramWish.__post_init__(self)
        SizeWish.__post_init__(self)
        TrainingWish.__post_init__(self)
        RecoveryWish.__post_init__(self)
