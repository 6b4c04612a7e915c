"""Writes a job's ScalePlan as its agent wants it: the pods that must exist, and the pods to kill.

In: `platforms.k8s.job.platform` changes the plan at any time; changes of one round become one write. Out: the plan in
the cluster, from which the operator creates and deletes pods. The writer updates the version that it has read and
retries on a conflict. It never overwrites the plan of a later master, whose term is in the plan.
"""

import asyncio
import logging

from springtide import errors
from springtide.domain.plan.scale_plan import PlanStatus, PodWish, ScalePlan
from springtide.domain.spec import schema
from springtide.platforms.k8s.api import api_errors
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import SCALE_PLANS, Object
from springtide.platforms.k8s.objects import names

log = logging.getLogger(__name__)

TERM = f"{names.GROUP}/term"
"""Annotation of the plan with the term of its last writer."""
ROUND_S = 0.02  # changes within this time share one write: an agent starts all first roles in one poll


class PlanWriter:
    """Writer of one job's plan. `term` is set once the agent's first master has a term."""

    def __init__(self, client: Client, job: str) -> None:
        self._client, self.job = client, job
        self.pods: dict[str, PodWish] = {}
        """All pods that must exist, by name."""
        self.kill: set[str] = set()
        self.begun = asyncio.Event()
        """Set once the agent's term is known; nothing is written before."""
        self._term = 0
        self.generation = 0
        """Generation of the last written plan."""
        self._dirty, self._written = asyncio.Event(), asyncio.Event()
        self._written.set()

    @property
    def term(self) -> int:
        return self._term

    @term.setter
    def term(self, number: int) -> None:
        self._term = number
        self.begun.set()

    async def read(self) -> tuple[ScalePlan, PlanStatus]:
        thing = await self._client.get(SCALE_PLANS, self.job)
        self.generation = int(thing["metadata"].get("generation", 0))
        return schema.made(ScalePlan, thing["spec"]), status_of(thing)

    def change(self) -> None:
        self._dirty.set()
        self._written.clear()

    async def keep(self) -> None:
        """Write every change; `Fenced` if a later agent has written."""
        failures = 0
        while True:
            await self._dirty.wait()
            await self.begun.wait()
            await asyncio.sleep(ROUND_S)
            self._dirty.clear()
            try:
                await self._write()
                failures = 0
                if not self._dirty.is_set():
                    self._written.set()
            except errors.Conflict:
                self._dirty.set()
            except errors.ClusterUnreachable as error:
                log.warning("the plan of %s is not written yet: %s", self.job, error)
                self._dirty.set()
                await asyncio.sleep(min(api_errors.LONGEST_PAUSE_S, api_errors.FIRST_PAUSE_S * 2 ** min(failures, 10)))
                failures += 1

    async def flushed(self) -> None:
        """Wait until all changes are written."""
        if self.begun.is_set():
            await self._written.wait()

    async def _write(self) -> None:
        thing = await self._client.get(SCALE_PLANS, self.job)
        annotations = thing["metadata"].setdefault("annotations", {})
        other = int(annotations.get(TERM) or 0)
        if other > self.term:
            raise errors.Fenced(f"the plan of {self.job} is by master number {other}; this is number {self.term}")
        plan = ScalePlan(job=self.job, origin="master", pods=tuple(self.pods.values()), kill=tuple(sorted(self.kill)))
        spec = schema.plain_of(plan)
        if thing["spec"] == spec and other == self.term:
            return
        annotations[TERM] = str(self.term)
        written = await self._client.update(SCALE_PLANS, {**thing, "spec": spec})
        self.generation = int(written["metadata"].get("generation", 0))


def status_of(plan: Object) -> PlanStatus:
    known = {field.key for field in schema.fields_of(PlanStatus)}
    return schema.made(PlanStatus, {key: each for key, each in (plan.get("status") or {}).items() if key in known})
