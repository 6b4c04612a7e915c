"""Pure. The status that a kubelet writes of a pod, from the states of its containers.

In: what each container is doing. Out: phase, conditions, container statuses, as in `kubectl get pod -o yaml`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from springtide_lab.kubernetes.api.object_lifecycle import stamp
from springtide_lab.kubernetes.api.status_errors import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One container: not started (`waiting` says why), running since, or ended."""

    name: str
    image: str = ""
    waiting: str = "ContainerCreating"
    message: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    code: int = 0
    reason: str = ""
    restarts: int = 0
    last: Json | None = None
    identity: str = ""
    resources: Json = field(default_factory=dict)

    @property
    def running(self) -> bool:
        return self.started_at is not None and self.ended_at is None

    @property
    def ended(self) -> bool:
        """Whether it has ended and is not about to start again."""
        return self.ended_at is not None

    def as_json(self) -> Json:
        """`waiting`, `running` or `terminated`."""
        if self.ended_at is not None:
            return {
                "terminated": {
                    "exitCode": self.code,
                    "reason": self.reason,
                    "startedAt": stamp(self.started_at or self.ended_at),
                    "finishedAt": stamp(self.ended_at),
                    "containerID": self.identity,
                    **({"message": self.message} if self.message else {}),
                }
            }
        if self.started_at is not None:
            return {"running": {"startedAt": stamp(self.started_at)}}
        return {"waiting": {"reason": self.waiting, **({"message": self.message} if self.message else {})}}

    def again(self, waiting: str, message: str) -> "State":
        return replace(
            self,
            waiting=waiting,
            message=message,
            started_at=None,
            ended_at=None,
            last=self.as_json(),
            restarts=self.restarts + 1,
        )

    def status(self, *, first: bool) -> Json:
        """As it stands in the pod's status; `first`: an init container, ready when it has done its work."""
        ready = (self.ended and self.code == 0) if first else self.running
        return {
            "name": self.name,
            "state": self.as_json(),
            "lastState": self.last or {},
            "ready": ready,
            "started": self.running,
            "restartCount": self.restarts,
            "image": self.image,
            "imageID": f"local://{self.image}" if self.identity else "",
            **({"containerID": self.identity} if self.identity else {}),
            **(
                {"resources": self.resources, "allocatedResources": self.resources.get("requests", {})}
                if self.resources
                else {}
            ),
        }


def reason_of(code: int, *, oom: bool) -> str:
    if oom:
        return "OOMKilled"
    return "Completed" if code == 0 else "StartError" if code == 128 else "Error"


def last_words(log: bytes) -> str:
    """The end of a container's log as a kubelet puts it into the status: 80 lines, 2 KiB at most."""
    return "".join(log[-2048:].decode(errors="replace").splitlines(keepends=True)[-80:])


def phase(policy: str, first: Sequence[State], states: Sequence[State]) -> str:
    if any(each.ended and each.code != 0 for each in first) and policy == "Never":
        return "Failed"
    if any(not each.ended or each.code != 0 for each in first):
        return "Pending"
    if any(each.running or (each.last is not None and not each.ended) or comes_back(policy, each) for each in states):
        return "Running"
    if any(not each.ended for each in states):
        return "Running" if any(each.ended for each in states) else "Pending"
    return "Failed" if any(each.code != 0 for each in states) else "Succeeded"


def comes_back(policy: str, state: State) -> bool:
    """Whether a container that has ended is to be started again."""
    return state.ended and (policy == "Always" or (policy == "OnFailure" and state.code != 0))


def conditions(
    now_phase: str, first: Sequence[State], states: Sequence[State], *, sandbox: bool
) -> dict[str, tuple[bool, str]]:
    over = now_phase in ("Succeeded", "Failed")
    initialized = all(each.ended and each.code == 0 for each in first)
    ready = not over and bool(states) and all(each.running for each in states)
    why = "PodCompleted" if now_phase == "Succeeded" else "PodFailed" if now_phase == "Failed" else "ContainersNotReady"
    return {
        "PodReadyToStartContainers": (sandbox and not over, ""),
        "Initialized": (initialized, "" if initialized else "ContainersNotInitialized"),
        "Ready": (ready, "" if ready else why),
        "ContainersReady": (ready, "" if ready else why),
        "PodScheduled": (True, ""),
    }


def timed(holds: Mapping[str, tuple[bool, str]], before: Sequence[Json], now: float) -> list[Json]:
    old = {each["type"]: each for each in before}
    result = []
    for kind, (true, reason) in holds.items():
        status = "True" if true else "False"
        known = old.get(kind)
        since = known["lastTransitionTime"] if known and known["status"] == status else stamp(now)
        entry: Json = {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": since}
        result.append({**entry, "reason": reason or None})
    return result


def status(
    pod: Json,
    first: Sequence[State],
    states: Sequence[State],
    *,
    address: str,
    host: str,
    began: float,
    now: float,
    last: bool = False,
) -> Json:
    """The whole status. `last`: nothing is started again, whatever the policy says."""
    now_phase = phase("Never" if last else pod["spec"].get("restartPolicy", "Always"), first, states)
    holds = conditions(now_phase, first, states, sandbox=bool(address))
    found: Json = {
        "phase": now_phase,
        "conditions": timed(holds, pod["status"].get("conditions") or [], now),
        "hostIP": host,
        "startTime": stamp(began),
        "observedGeneration": pod["metadata"].get("generation"),
        "containerStatuses": [each.status(first=False) for each in states],
    }
    if first:
        found["initContainerStatuses"] = [each.status(first=True) for each in first]
    if address:
        found |= {"podIP": address, "podIPs": [{"ip": address}]}
    return found
