"""Pure. Job options that apply to one kind of cluster only; other platforms ignore them.

In: part of `domain.spec.elastic_job`. Next: `platforms.k8s` and `platforms.ray_cluster` read them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from springtide import errors
from springtide.domain.core.validation import holds_numbers

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
