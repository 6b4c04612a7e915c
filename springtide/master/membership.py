"""Admits servers, workers and data workers to the job.

In: `Join*` requests, from `master.dispatcher`. Out: a welcome message with everything that the member needs to begin.
The state machine gets `events.RoleJoined`, and the event log a line.
"""

from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.spec.job_spec import JobPhase
from springtide.job.core import events
from springtide.job.core.nodes import NodeState
from springtide.master.core.context import MasterContext
from springtide.master.parts import MasterParts
from springtide.rpc.messages import messages
from springtide.rpc.transport.listener import Peer


class Membership:
    """Join handlers of one master."""

    def __init__(self, context: MasterContext, parts: MasterParts) -> None:
        self._context, self._record = context, context.record
        self._rounds, self._healing = parts.checkpoints, parts.recovery
        self._rollout, self._feeding = parts.migration, parts.data_workers

    async def server(self, peer: Peer, request: messages.JoinServer) -> messages.ServerWelcome:
        """Admit a server, and tell it its slots."""
        role = Role(RoleKind.SERVER, request.rank)
        self._join(peer, role, request)
        if not request.welcomed:
            await self._rollout.reckon(role, request.incarnation)
        state, spec = self._record.state, self._record.state.spec
        return messages.ServerWelcome(
            job=spec.name,
            slots=spec.slots,
            seed=spec.seed,
            workers=spec.workers,
            sync=spec.sync,
            heartbeat_s=spec.heartbeat_s,
            checkpoints=self._rounds.folder,
            run=self._rounds.saving.lineage.run,
            claim=self._rounds.saving.claim_name,
            mirror=spec.checkpoints.mirror,
            restore=self._healing.to_bring_back(role) or self._rounds.restore_for(request.rank),
            placement=self._healing.placement_for(role),
            generation=state.bsp.generation,
        )

    async def worker(self, peer: Peer, request: messages.JoinWorker) -> messages.WorkerWelcome:
        """Admit a worker that called `st.join()`, once the servers are ready."""
        role, record = Role(RoleKind.WORKER, request.rank), self._record
        self._join(peer, role, request)
        waits = record.state.spec.gang
        await self._context.changed.until(
            lambda: record.reachable and not (waits and record.state.phase is JobPhase.STARTING)
        )
        placed, servers = record.placement, record.state.of_kind(RoleKind.SERVER)
        assert placed is not None
        # the worker could send no heartbeat while it waited
        self._context.apply(events.RoleAlive(role, request.incarnation))
        spec = record.state.spec
        return messages.WorkerWelcome(
            job=spec.name,
            rank=request.rank,
            workers=spec.workers,
            servers=record.addresses,
            placement=placed,
            slots=spec.slots,
            seed=spec.seed,
            sync=spec.sync,
            heartbeat_s=spec.heartbeat_s,
            incarnation=request.incarnation,
            lives=tuple(node.incarnation for node in servers),
            generation=record.state.bsp.generation,
            objects=record.objects_for(request.rank),
            cache=spec.cache,
            checkpoint_s=spec.checkpoints.every_s if spec.checkpoints.on else None,
            feeding=spec.feeding,
            package=self._feeding.package,
            place=record.place_for(request.rank),
            lived=request.rank in record.places,
        )

    def data_worker(self, peer: Peer, request: messages.JoinDataWorker) -> messages.DataWorkerWelcome:
        self._join(peer, Role(RoleKind.DATA_WORKER, request.rank), request)
        return self._feeding.welcome()

    def _join(self, peer: Peer, role: Role, request: messages.Join) -> None:
        new = self._record.state.node(role).state is NodeState.EXPECTED
        self._context.apply(events.RoleJoined(role, request.incarnation, request.pid, request.birth))
        peer.role, peer.incarnation = role, request.incarnation
        kind = "joined" if new else "reconnected"
        self._context.log_event(kind, role=str(role), pid=request.pid, incarnation=request.incarnation)
