"""Run one pod on this machine until the pod ends: volumes, containers, restarts, deletion.

In: the pod as stored by the API, passed again after each change (`see`). Out: processes, and the pod's status
through the API (phase, conditions, container statuses). `run` returns when the deleted pod has been removed.
"""

import asyncio
import contextlib
import logging
import pathlib
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from springtide import errors
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import PODS, timestamp
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.kubelet import container_spec
from springtide_lab.kubernetes.kubelet.container_spec import Lookup, Missing
from springtide_lab.kubernetes.kubelet.containers import Container, ContainerEnd, Machine, Mount

log = logging.getLogger(__name__)
AGAIN_S = 0.3  # seconds between two checks for missing objects
KILLED = 137
BACKOFF_S = 0.2  # seconds before the first restart; a real kubelet waits 10 s
MISSING_IMAGE = "missing"  # an image whose name contains this text cannot be pulled


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """State of one container: not started (`waiting` is the reason), running, or ended."""

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
        """True if the container has ended and is not waiting for a restart."""
        return self.ended_at is not None

    def as_json(self) -> Json:
        """Return the `state` of a container status: `waiting`, `running` or `terminated`."""
        if self.ended_at is not None:
            return {
                "terminated": {
                    "exitCode": self.code,
                    "reason": self.reason,
                    "startedAt": timestamp(self.started_at or self.ended_at),
                    "finishedAt": timestamp(self.ended_at),
                    "containerID": self.identity,
                    **({"message": self.message} if self.message else {}),
                }
            }
        if self.started_at is not None:
            return {"running": {"startedAt": timestamp(self.started_at)}}
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

    def status(self) -> Json:
        """Return the container status for the pod's status."""
        found = {
            "name": self.name,
            "state": self.as_json(),
            "lastState": self.last or {},
            "ready": self.running,
            "started": self.running,
            "restartCount": self.restarts,
            "image": self.image,
            "imageID": f"local://{self.image}" if self.identity else "",
            "containerID": self.identity,
        }
        if self.resources:
            found |= {"resources": self.resources, "allocatedResources": self.resources.get("requests", {})}
        return found


def reason_of(code: int, *, oom: bool) -> str:
    if oom:
        return "OOMKilled"
    return "Completed" if code == 0 else "StartError" if code == 128 else "Error"


def last_words(log: bytes) -> str:
    """Return the end of a container's log for the status, as a kubelet does: at most 80 lines and 2 KiB."""
    return "".join(log[-2048:].decode(errors="replace").splitlines(keepends=True)[-80:])


def phase(policy: str, states: Sequence[State]) -> str:
    if any(
        state.running or (state.last is not None and not state.ended) or comes_back(policy, state) for state in states
    ):
        return "Running"
    if any(not state.ended for state in states):
        return "Running" if any(state.ended for state in states) else "Pending"
    return "Failed" if any(state.code != 0 for state in states) else "Succeeded"


def comes_back(policy: str, state: State) -> bool:
    """Return True if an ended container must be restarted."""
    return state.ended and (policy == "Always" or (policy == "OnFailure" and state.code != 0))


def conditions(now_phase: str, states: Sequence[State]) -> dict[str, tuple[bool, str]]:
    over = now_phase in ("Succeeded", "Failed")
    ready = not over and all(state.running for state in states)
    why = "PodCompleted" if now_phase == "Succeeded" else "PodFailed" if now_phase == "Failed" else "ContainersNotReady"
    return {
        "Ready": (ready, "" if ready else why),
        "PodScheduled": (True, ""),
    }


def timed(holds: Mapping[str, tuple[bool, str]], before: Sequence[Json], now: float) -> list[Json]:
    old = {each["type"]: each for each in before}
    result = []
    for kind, (true, reason) in holds.items():
        status = "True" if true else "False"
        known = old.get(kind)
        since = known["lastTransitionTime"] if known and known["status"] == status else timestamp(now)
        entry: Json = {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": since}
        result.append({**entry, "reason": reason or None})
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Environment of a pod on this machine: client, folders, addresses and callbacks."""

    client: Client
    machine: Machine
    folder: pathlib.Path
    claims: pathlib.Path
    hosts: pathlib.Path
    address: str
    host: str
    base_env: dict[str, str]
    fetch: Callable[[str, set[tuple[str, str]]], Awaitable[Lookup]]
    token_of: Callable[[str, str, int, Json], Awaitable[str]]
    hindered: Callable[[Json], str] = field(default=lambda _: "")
    """Function that returns why the node has no room for the resized pod; it returns an empty string if there is
    room.
    """


class PodLife:
    """A pod on this machine; `run` runs it."""

    def __init__(self, place: Place, pod: Json) -> None:
        self.pod = pod
        self._place = place
        self._began = time.time()
        self._seen = asyncio.Event()
        self._stop = asyncio.Event()
        self._posted: Json | None = None
        self._states = [self._state(each) for each in pod["spec"]["containers"]]
        self._mounts: dict[str, Mount] = {}
        self._lookup: Lookup = lambda *_: None
        self.running: dict[str, Container] = {}

    def _state(self, container: Json) -> State:
        status = self.pod["status"].get("containerStatuses") or []
        known: Json = next((each for each in status if each["name"] == container["name"]), {})
        return State(
            name=container["name"],
            image=container["image"],
            resources=container.get("resources") or {},
            restarts=known.get("restartCount", 0),
        )

    def see(self, pod: Json) -> None:
        self.pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            self._stop.set()
        self._seen.set()

    def log_of(self, container: str, restarts: int | None = None) -> pathlib.Path:
        known = next((state for state in self._states if state.name == container), None)
        number = restarts if restarts is not None else known.restarts if known else 0
        return self._place.folder / "logs" / container / f"{max(0, number)}.log"

    def is_over(self, container: str) -> bool:
        return any(state.name == container and state.ended for state in self._states)

    async def run(self) -> None:
        """Run the pod. If the task is cancelled, for example when the node is lost, kill the containers without a
        report."""
        try:
            if self.pod["metadata"].get("deletionTimestamp"):
                self._stop.set()
            living = asyncio.create_task(self._live())
            stopping = asyncio.create_task(self._stop.wait())
            resizing = asyncio.create_task(self._resize())
            try:
                await asyncio.wait({living, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if self._stop.is_set():
                    living.cancel()  # start no more containers
                    await asyncio.wait({living})
                    await self._end()
            finally:
                for task in (living, stopping, resizing):
                    task.cancel()
                results = await asyncio.gather(living, stopping, resizing, return_exceptions=True)
                for result in results:
                    if isinstance(result, Exception):
                        log.error("pod %s: %r", self.pod["metadata"]["name"], result)
            await self._post(last=True)
            if self._stop.is_set():
                await self._remove()
            else:
                await self._wait_for_deletion()
        finally:
            for container in self.running.values():
                container.signal(signal.SIGKILL)

    async def _wait_for_deletion(self) -> None:
        while not self.pod["metadata"].get("deletionTimestamp"):
            self._seen.clear()
            await self._seen.wait()
        await self._remove()

    async def _live(self) -> None:
        await self._prepare()
        await asyncio.gather(*(self._keep(index) for index in range(len(self._states))))

    async def _prepare(self) -> None:
        await self._post()
        while not (self._has_images() and await self._has_volumes()):
            await self._post()
            await asyncio.sleep(AGAIN_S)

    def _has_images(self) -> bool:
        fine = True
        for index, state in enumerate(self._states):
            if MISSING_IMAGE in state.image:
                reason = "ImagePullBackOff" if state.waiting == "ErrImagePull" else "ErrImagePull"
                self._states[index] = replace(state, waiting=reason, message=f"no such image: {state.image}")
                fine = False
        return fine

    async def _has_volumes(self) -> bool:
        meta = self.pod["metadata"]
        place = self._place

        async def token(account: str, seconds: int) -> str:
            return await place.token_of(meta["namespace"], account, seconds, self.pod)

        try:
            self._lookup = await place.fetch(meta["namespace"], container_spec.references(self.pod))
            makes = container_spec.Volumes(place.folder / "volumes", place.claims, self._lookup, token)
            self._mounts = await makes.make(self.pod)
        except Missing as missing:
            self._states = [replace(state, message=f"MountVolume.SetUp failed: {missing}") for state in self._states]
            return False
        return True

    async def _keep(self, index: int) -> None:
        while True:
            end = await self._once(index, self.pod["spec"]["containers"][index])
            policy = self.pod["spec"]["restartPolicy"]
            if policy == "Never" or (policy == "OnFailure" and end is not None and end.code == 0):
                return
            await self._back_off(index)

    async def _back_off(self, index: int) -> None:
        failures = self._states[index].restarts
        self._states[index] = self._states[index].again("CrashLoopBackOff", "back-off restarting failed container")
        await self._post()
        await asyncio.sleep(min(300.0, BACKOFF_S * 2.0 ** min(failures, 8)))

    async def _once(self, index: int, container: Json) -> ContainerEnd | None:
        states = self._states
        try:
            now = {
                **self.pod,
                "status": {**self.pod["status"], "podIP": self._place.address, "hostIP": self._place.host},
            }
            wish = container_spec.wish_of(
                now,
                container,
                env=self._place.base_env,
                lookup=self._lookup,
                mounts=self._mounts,
                hosts=self._place.hosts,
                log=self.log_of(container["name"], states[index].restarts),
            )
        except Missing as missing:
            states[index] = replace(states[index], waiting="CreateContainerConfigError", message=str(missing))
            await self._post()
            await asyncio.sleep(AGAIN_S)
            return None
        started = self._place.machine.start(wish)
        self.running[container["name"]] = started
        await started.begun.wait()
        identity = f"local://{started.process.pid}-{int(started.started_at * 1000)}"
        states[index] = replace(
            states[index], started_at=started.started_at, ended_at=None, identity=identity, message=""
        )
        await self._post()
        end = await asyncio.shield(started.ended)
        self._note_end(index, end)
        self.running.pop(container["name"], None)
        await self._post()
        return end

    def _note_end(self, index: int, end: ContainerEnd) -> None:
        state, container = self._states[index], self.pod["spec"]["containers"][index]
        code, message = KILLED if end.oom else end.code, ""
        if code != 0 and container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            message = last_words(self.log_of(state.name, state.restarts).read_bytes())
        reason = reason_of(end.code, oom=end.oom)
        self._states[index] = replace(state, ended_at=end.at, code=code, reason=reason, message=message)

    async def _end(self) -> None:
        began = asyncio.get_running_loop().time()

        def left() -> float:
            grace = float(self.pod["metadata"].get("deletionGracePeriodSeconds", 0))
            return began + grace - asyncio.get_running_loop().time()

        await asyncio.gather(*(self._before_stop(name, left()) for name in list(self.running)))
        for container in self.running.values():
            container.signal(signal.SIGTERM)
        while self.running and left() > 0:
            self._seen.clear()
            waits: list[asyncio.Future[Any]] = [each.ended for each in self.running.values()]
            seen = asyncio.create_task(self._seen.wait())
            await asyncio.wait([*waits, seen], timeout=left(), return_when=asyncio.FIRST_COMPLETED)
            seen.cancel()
            if all(each.ended.done() for each in self.running.values()):
                break
        for name, container in list(self.running.items()):
            container.signal(signal.SIGKILL)
            end = await asyncio.shield(container.ended)
            self._note_end(next(index for index, state in enumerate(self._states) if state.name == name), end)
        now = time.time()
        for index, state in enumerate(self._states):
            if not state.ended:
                self._states[index] = replace(
                    state,
                    ended_at=now,
                    started_at=state.started_at or now,
                    code=KILLED,
                    reason="ContainerStatusUnknown",
                    message="The container could not be located when the pod was deleted",
                )

    async def _before_stop(self, name: str, within_s: float) -> None:
        container = next(each for each in self.pod["spec"]["containers"] if each["name"] == name)
        hook = (container.get("lifecycle") or {}).get("preStop")
        running = self.running.get(name)
        if hook and running is not None and within_s > 0:
            await self._place.machine.execute(running, hook["exec"]["command"], within_s)

    async def _resize(self) -> None:
        while True:
            await self._seen.wait()
            self._seen.clear()
            for index, wanted in enumerate(self.pod["spec"]["containers"]):
                state, resources = self._states[index], wanted.get("resources") or {}
                running = self.running.get(state.name)
                if resources == state.resources or running is None:
                    continue
                hindered = self._place.hindered(self.pod)
                if not hindered and running.hold(container_spec.limits_of(wanted)):
                    self._states[index] = replace(state, resources=resources)
                    await self._post()
                else:
                    await self._post(pending=hindered or "Deferred")

    async def _remove(self) -> None:
        meta = self.pod["metadata"]
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self._place.client.delete(PODS, meta["name"], namespace=meta["namespace"], grace_s=0, uid=meta["uid"])

    def _status(self, *, last: bool) -> Json:
        """Return the pod's status. With `last`, no container restarts, whatever the restart policy is."""
        pod, address = self.pod, self._place.address
        now_phase = phase("Never" if last else pod["spec"].get("restartPolicy", "Always"), self._states)
        before = pod["status"].get("conditions") or []
        return {
            "phase": now_phase,
            "conditions": timed(conditions(now_phase, self._states), before, time.time()),
            "hostIP": self._place.host,
            "podIP": address,
            "podIPs": [{"ip": address}],
            "startTime": timestamp(self._began),
            "observedGeneration": pod["metadata"].get("generation"),
            "containerStatuses": [state.status() for state in self._states],
        }

    async def _post(self, *, last: bool = False, pending: str = "") -> None:
        status = self._status(last=last)
        if pending:
            status["conditions"] += timed({"PodResizePending": (True, pending)}, [], time.time())
        if status == self._posted:
            return
        meta = self.pod["metadata"]
        body = {"metadata": {"uid": meta["uid"]}, "status": status}
        while True:
            try:
                await self._place.client.patch(
                    PODS, meta["name"], body, namespace=meta["namespace"], subresource="status", how="strategic"
                )
            except (errors.NotFound, errors.Conflict):
                return  # the pod was removed, or replaced by another of the same name
            except errors.ClusterUnreachable as error:
                log.warning("the status of pod %s is told later: %s", meta["name"], error)
                await asyncio.sleep(AGAIN_S)
                continue
            self._posted = status
            return
