"""Carries out the operator's decisions for one job: reads the job from the cluster, acts, and reports the result.

The executor keeps no state, so a restarted operator continues from the objects in the cluster. If the cluster
refuses an action (because of a quota or a policy), the executor reports this and retries.
"""

import asyncio
import contextlib
import datetime
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from springtide import errors
from springtide.domain.plan.scale_plan import PodState, ScalePlan
from springtide.domain.spec import schema
from springtide.platforms.agent import credentials
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import Object, ObjectKind
from springtide.platforms.k8s.objects import job_objects, names, pod_status
from springtide.platforms.k8s.objects.job_objects import JobObject
from springtide.platforms.k8s.objects.pods import Site
from springtide.platforms.k8s.operator import job_view, lifecycle, pod_plan, status_reports
from springtide.platforms.k8s.operator.job_view import OperatorView, doomed
from springtide.platforms.k8s.operator.status_reports import JobNotice, StepOutcome

log = logging.getLogger(__name__)

AT_ONCE = 16
HASTE_S = 1.0
"""Seconds that an eviction may take, because the operator does not wait for an eviction that the disruption budget
forbids."""
REFUSED_S = 15.0
"""Seconds until a refused action is retried; a quota becomes free when another job ends."""


class NameTaken(errors.ClusterRefused):
    """Raised if an object of that name belongs to another owner."""


class Executor:
    """Acts on one cluster. The watcher of nodes updates `nodes`."""

    def __init__(
        self,
        client: Client,
        site: Site,
        *,
        brain_secret: str = "",
        brain_files: Mapping[str, bytes] | None = None,
        can_resize: bool = False,
    ) -> None:
        self._client, self._site, self._can_resize = client, site, can_resize
        self._brain_secret, self._brain_files = brain_secret, brain_files or {}
        self.nodes: dict[str, Mapping[str, Any]] = {}
        self._room = asyncio.Semaphore(AT_ONCE)

    async def attend(self, key: tuple[str, str]) -> float | None:
        namespace, name = key
        pods = (await self._client.list(kinds.PODS, namespace=namespace, labels=f"{names.JOB}={name}")).items
        plan = await self._find(kinds.SCALE_PLANS, name, namespace)
        thing = await self._find(kinds.ELASTIC_JOBS, name, namespace)
        if thing is None or "deletionTimestamp" in thing["metadata"]:
            return None  # the cluster's garbage collector removes the job's objects
        try:
            job = job_objects.read(thing)
        except errors.BadInput as error:
            status, generation = thing.get("status") or {}, int(thing["metadata"].get("generation", 0))
            await self._patch_status(thing, status_reports.rejected(status, generation, str(error), time.time()))
            return None
        seen = self._view(job, pods, plan)
        decided = self._decide(seen)
        outcome = await self._do(seen, decided.steps)
        refused = outcome.master_refused or any(pod.phase == pod_status.REFUSED for pod in outcome.pods.values())
        await self._report(seen, thing, plan, outcome)
        refused_s = lifecycle.LOOK_AGAIN_S if outcome.taken else REFUSED_S
        return lifecycle.sooner(decided.again_s, refused_s if refused else None, 3600.0)

    def _view(self, job: JobObject, pods: Sequence[Object], plan: Object | None) -> OperatorView:
        own, foreign = job_view.sorted_out(pods, job.uid)
        asked, fault = None, ""
        ours = plan is not None and any(
            owner.get("uid") == job.uid for owner in plan["metadata"].get("ownerReferences") or []
        )
        if plan is not None and ours:
            try:
                asked = schema.made(ScalePlan, plan.get("spec") or {})
            except errors.BadInput as error:
                fault = str(error)
        nodes = tuple(self.nodes.values())
        return OperatorView(
            job=job,
            site=self._site,
            at=time.time(),
            pods=own,
            foreign=foreign,
            plan=asked,
            plan_fault=fault,
            plan_generation=int(plan["metadata"].get("generation", 0)) if plan is not None else 0,
            plan_status=job_objects.plan_status(plan if plan is not None and ours else {}),
            can_resize=self._can_resize,
            nodes=nodes,
            doomed=doomed(nodes),
        )

    @staticmethod
    def _decide(seen: OperatorView) -> lifecycle.OperatorSteps:
        alone_s = lifecycle.left_alone_s(seen)
        if lifecycle.stopped_early(seen) or alone_s == 0:
            return lifecycle.decide_stopped(seen)
        first = lifecycle.decide_over(seen) if seen.job.over else lifecycle.decide_master(seen)
        second = pod_plan.decide_pods(seen)
        again_s = lifecycle.sooner(first.again_s, second.again_s, alone_s)
        return lifecycle.OperatorSteps(steps=(*first.steps, *second.steps), again_s=again_s)

    # ---- acting ----

    async def _do(self, seen: OperatorView, todo: Sequence[lifecycle.Step]) -> StepOutcome:
        pods: dict[str, PodState] = {}
        made: dict[str, int] = {}
        budget = master = None
        refused, taken = "", False
        for step in todo:
            match step:
                case lifecycle.MakeMaster():
                    try:
                        await self._prepare(seen)
                        await self._create(kinds.PODS, step.pod, seen.job)
                        log.info("%s: master's pod %d is made", seen.job.name, step.number)
                        master = step.number, step.in_a_row
                    except (errors.ClusterRefused, errors.Forbidden) as error:
                        refused, taken = str(error), isinstance(error, NameTaken)
                case lifecycle.DeletePod() | lifecycle.EvictPod():
                    await self._take_away(seen, step)
                case lifecycle.ResizePod(name):
                    pods[name] = await self._resize(seen, step)
                case lifecycle.SetBudget(servers):
                    budget = await self._set_budget(seen, servers)
                case lifecycle.DeleteJob(why):
                    log.info("%s/%s is deleted: %s", seen.job.namespace, seen.job.name, why)
                    with contextlib.suppress(errors.NotFound, errors.Conflict):
                        await self._client.delete(
                            kinds.ELASTIC_JOBS,
                            seen.job.name,
                            namespace=seen.job.namespace,
                            uid=seen.job.uid,
                            propagation="Background",
                        )
        makes = [step for step in todo if isinstance(step, lifecycle.MakePod)]
        for step, state in zip(makes, await asyncio.gather(*(self._make(seen, step) for step in makes)), strict=True):
            pods[step.entry.pod_name(seen.job.name)] = state
            if state.phase != pod_status.REFUSED:
                made[str(step.entry.life.role)] = step.entry.incarnation
        return StepOutcome(pods=pods, made=made, budget=budget, master=master, master_refused=refused, taken=taken)

    async def _make(self, seen: OperatorView, step: lifecycle.MakePod) -> PodState:
        async with self._room:
            try:
                await self._create(kinds.PODS, step.pod, seen.job)
            except errors.ClusterRefused as error:
                return PodState(phase=pod_status.REFUSED, why=str(error))
            log.info("%s is made", step.pod["metadata"]["name"])
            return PodState(phase=pod_status.PENDING)

    async def _create(self, kind: ObjectKind, body: Object, job: JobObject) -> bool:
        """Create an object unless it exists. Raise `NameTaken` if the existing object belongs to another job."""
        try:
            await self._client.create(kind, body, namespace=job.namespace)
            return True
        except errors.AlreadyThere:
            found = await self._find(kind, body["metadata"]["name"], job.namespace)
            owners = (found or {}).get("metadata", {}).get("ownerReferences") or []
            if not any(owner.get("uid") == job.uid for owner in owners):
                raise NameTaken(
                    f"{kind} {body['metadata']['name']} exists and belongs to another job; the operator deletes an "
                    f"object of an earlier job of this name; otherwise rename this job"
                ) from None
            return False

    async def _prepare(self, seen: OperatorView) -> None:
        job = seen.job
        for kind, body in job_objects.of_job(job):
            made = await self._create(kind, body, job)
            if not made and kind is kinds.ROLES:  # update a Role that an earlier version of the operator created
                await self._client.patch(
                    kind, body["metadata"]["name"], {"rules": body["rules"]}, namespace=job.namespace
                )
        files = {"secret": secrets.token_hex(32).encode(), "brain-secret": self._brain_secret.encode()}
        if job.job.kubernetes.tls:
            files |= credentials.make(job.name, at=datetime.datetime.now(datetime.UTC))
        with contextlib.suppress(errors.AlreadyThere):
            await self._client.create(kinds.SECRETS, job_objects.secret(job, files), namespace=job.namespace)
        if self._brain_files:
            body = job_objects.brain_certificates(job, self._brain_files)
            with contextlib.suppress(errors.AlreadyThere):
                await self._client.create(kinds.SECRETS, body, namespace=job.namespace)
        # write the status now, because the master reads the capacity of the nodes when it starts
        status = status_reports.plan_status(seen, StepOutcome())
        if change := status_reports.plan_patch({}, status):
            await self._set_plan_status(job, change)

    async def _take_away(self, seen: OperatorView, step: lifecycle.DeletePod | lifecycle.EvictPod) -> None:
        space = seen.job.namespace
        log.info("%s goes: %s", step.name, step.why)
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            if isinstance(step, lifecycle.DeletePod):
                await self._client.delete(kinds.PODS, step.name, namespace=space, grace_s=step.grace_s, uid=step.uid)
                return
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": step.name, "namespace": space},
                "deleteOptions": {"preconditions": {"uid": step.uid}},
            }
            try:
                await self._client.post(kinds.PODS, step.name, "eviction", body, namespace=space, within_s=HASTE_S)
            except errors.ClusterUnreachable as error:  # the disruption budget forbids the eviction at present (429)
                log.info("%s stays for now: %s", step.name, error)

    async def _resize(self, seen: OperatorView, step: lifecycle.ResizePod) -> PodState:
        state = pod_status.state_of(seen.pods[step.name])
        change = {"spec": {"containers": [{"name": step.container, "resources": step.resources}]}}
        try:
            await self._client.patch(
                kinds.PODS, step.name, change, namespace=seen.job.namespace, subresource="resize", how="strategic"
            )
        except errors.NotFound:
            return state
        except (errors.ClusterRefused, errors.Forbidden) as error:
            return PodState(phase=state.phase, why=str(error), resized="Infeasible")
        log.info("%s should have %s", step.name, step.resources.get("limits"))
        return PodState(phase=state.phase, why=state.why, resized="Proposed")

    async def _set_budget(self, seen: OperatorView, servers: int) -> int | None:
        body = job_objects.budget(seen.job, servers)
        name, change = body["metadata"]["name"], {"spec": {"minAvailable": body["spec"]["minAvailable"]}}
        try:
            if not await self._create(kinds.DISRUPTION_BUDGETS, body, seen.job):
                await self._client.patch(kinds.DISRUPTION_BUDGETS, name, change, namespace=seen.job.namespace)
        except (errors.ClusterRefused, errors.Forbidden) as error:  # create the pods even without a disruption budget
            log.warning("%s: no disruption budget: %s", seen.job.name, error)
            return None
        return servers

    # ---- saying ----

    async def _report(self, seen: OperatorView, thing: Object, plan: Object | None, outcome: StepOutcome) -> None:
        status = status_reports.plan_status(seen, outcome)
        if plan is not None and (change := status_reports.plan_patch(plan.get("status") or {}, status)):
            with contextlib.suppress(errors.NotFound):
                await self._set_plan_status(seen.job, change)
        if lifecycle.stopped_early(seen):
            await self._patch_status(thing, status_reports.stopped(seen.job, "stopped before it began", seen.at))
        elif lifecycle.left_alone_s(seen) == 0:
            why = "stopped; the master did not return to drain the job, so progress after the last checkpoint is lost"
            await self._patch_status(thing, status_reports.stopped(seen.job, why, seen.at))
        else:
            await self._patch_status(thing, status_reports.job_status(seen, outcome, status))

    async def _set_plan_status(self, job: JobObject, change: Object) -> None:
        body = {"status": change}
        await self._client.patch(kinds.SCALE_PLANS, job.name, body, namespace=job.namespace, subresource="status")

    async def _patch_status(self, thing: Object, change: Object | None) -> None:
        """Patch the status, unless the master has written it in the meantime. The next visit then sees the master's
        status."""
        if not change:
            return
        metadata = thing["metadata"]
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": change}
        try:
            await self._client.patch(
                kinds.ELASTIC_JOBS, metadata["name"], body, namespace=metadata["namespace"], subresource="status"
            )
        except errors.NotFound:
            return
        for line in status_reports.news(thing.get("status") or {}, change):
            await self._record_event(thing, line)

    async def _record_event(self, thing: Object, news: JobNotice) -> None:
        metadata, now = thing["metadata"], kinds.timestamp(time.time())
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": names.API_VERSION,
                "kind": schema.KIND,
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "type": news.kind,
            "reason": news.reason,
            "message": news.message[:1000],
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": "springtide-operator"},
        }
        try:
            await self._client.create(kinds.EVENTS, body, namespace=metadata["namespace"])
        except errors.SpringtideError as error:
            log.warning("no event %s for %s: %s", news.reason, metadata["name"], error)

    async def _find(self, kind: ObjectKind, name: str, namespace: str) -> Object | None:
        try:
            return await self._client.get(kind, name, namespace=namespace)
        except errors.NotFound:
            return None
