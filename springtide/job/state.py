"""Pure. State machine of one job: `handle(event, at=...)` returns the actions to take. The clock is an argument.

In: `job.core.events`. Out: actions of `job.core.actions`, and `wanted()`, which returns the processes that must exist.
Rules are in `job.recovery`, `job.bsp_group` and `job.scaling`. Next: `master.core.context` executes the actions.
"""

from dataclasses import dataclass

from springtide import errors
from springtide.domain.core.roles import RANKED, Role, RoleExit, RoleKind, WantedRole
from springtide.domain.spec.job_spec import Blame, JobPhase
from springtide.job import bsp_group, recovery
from springtide.job.core import actions, events
from springtide.job.core.job_core import JobCore
from springtide.job.core.nodes import ALIVE, NodeState, RoleNode
from springtide.job.scaling import data_workers, evictions, plan, roles

# seconds to wait for the cause of a symptom; for example, a worker that cannot reach a server is a symptom
EXPLANATION_S = 2.0
TAKEN_OVER = "the previous master has ended; the job continues"


@dataclass(slots=True)
class JobState(JobCore):
    """A job's state machine."""

    def handle(self, event: events.JobEvent, *, at: float) -> list[actions.JobAction]:
        """Apply an event, and return the actions to take. After the end of the job, events change nothing."""
        if self.phase.over:
            return []
        match event:
            case _ if data_workers.concerns(event):
                return data_workers.apply(self, event, at)
            case events.RoleJoined():
                return self._join(event, at)
            case events.RoleReady(role, address, incarnation):
                return [] if self.fenced(role, incarnation) else self._ready(self.node(role), address, at)
            case events.RoleAlive(role, incarnation):
                if not self.fenced(role, incarnation):
                    self.node(role).heard_at = at
                return []
            case events.ScriptFinished():
                return self._finish(event, at)
            case events.ScriptFailed():
                return self._script_failed(event, at)
            case events.RoleExited(ended):
                return self._exited(ended, at)
            case events.CheckpointSaved(number):
                self.safety.saved = number
                return []
            case events.WorkersScaled():
                return self._scale_workers(event, at)
            case events.PlanAdvanced():
                return self._advance_plan(event, at)
            case events.BoundsChanged() | events.RolesResized() | events.PlanTaken() | events.PlanEnded():
                return self._apply_plan(event, at)
            case events.ServersScaled() | events.ServerReplaced():
                return [self.decide(*roles.change_servers(self, event, at))]
            case events.EvictionNoticed() | events.ServerEmptied():
                return evictions.apply(self, event, at)
            case events.DecisionMade(what, why, told):
                return [self.decide(what, why, told=told)]
            case events.BspBegan():
                self.bsp.in_step = True
                return []
            case events.GroupFormed(members, why):
                return bsp_group.record_group(self, members, why, at)
            case events.GroupLost(why):
                return self._roll_back(why or bsp_group.ALL_LOST, at)
            case events.StopRequested(why):
                return self._stop(why, at)
            case events.MasterFailed(error):
                return self.fail(error, Blame.INFRASTRUCTURE)
            case events.MasterTookOver(term):
                return self._take_over(term, at)
            case events.FinalCheckpointDone(outcome):
                self.ending.last_save = outcome
                return self.end_if_done()
            case events.RoleSilent() | events.RoleLate() | events.DrainOverdue():
                return self._overdue(event, at)
            case events.SuspicionExpired():
                suspicion = self.ending.suspicion
                assert suspicion is not None
                return self.fail(suspicion.error, Blame.INFRASTRUCTURE, suspicion.trace)
        raise AssertionError(f"no rule for {type(event).__name__}")

    def _take_over(self, term: int, at: float) -> list[actions.JobAction]:
        for node in self.nodes.values():
            node.heard_at = at  # restart the heartbeat timeout, because no heartbeat could arrive until now
        return [self.decide(f"took over as master number {term}", TAKEN_OVER)]

    # ---- queries ----

    def wanted(self) -> tuple[WantedRole, ...]:
        nodes = [node for kind in RANKED for node in self.of_kind(kind)]
        return tuple(node.wanted for node in nodes if node.state is not NodeState.GONE)

    def draining(self, role: Role) -> bool:
        """Return True if a worker should finish its batch and leave. A bsp group learns of the drain through its
        leases."""
        draining = self.phase is JobPhase.DRAINING and not self.bsp.in_step
        return self.node(role).state is NodeState.DRAINING or draining

    @property
    def saving_last(self) -> bool:
        return self.ending.last_save == "" and not self.phase.over

    def due(self, *, at: float) -> list[events.JobEvent]:
        """Return the events that are due: a role joins too late, misses heartbeats, or drains too slowly.

        The master journals these events, but not heartbeats.
        """
        if self.phase.over:
            return []
        overdue = evictions.requests_due(self, at=at)
        if self.ending.suspicion and at - self.ending.suspicion.since >= EXPLANATION_S:
            overdue.append(events.SuspicionExpired())
        for node in self.nodes.values():
            silent_s = at - node.heard_at
            if node.state is NodeState.EXPECTED and silent_s > self.spec.join_s:
                overdue.append(events.RoleLate(node.role, node.incarnation, silent_s))
            if node.state not in ALIVE or self.phase is JobPhase.STARTING:
                continue
            leaves = node.role.kind is not RoleKind.SERVER  # a server leaves only after its last slot has moved
            draining = node.state is NodeState.DRAINING
            if leaves and draining and at - node.departure.drain_since > self.spec.drain_s:
                overdue.append(events.DrainOverdue(node.role, node.incarnation))
            elif silent_s > self.patience_s(node.role.kind):
                overdue.append(events.RoleSilent(node.role, node.incarnation, silent_s))
        return overdue

    def forgive(self, seconds: float) -> None:
        """Extend all heartbeat deadlines by the time in which the master could not receive heartbeats."""
        for node in self.nodes.values():
            node.heard_at += seconds

    # ---- coming ----

    def _join(self, event: events.RoleJoined, at: float) -> list[actions.JobAction]:
        node = self.node(event.role)
        if self.fenced(event.role, event.incarnation):
            raise errors.Fenced(
                f"{event.role} of incarnation {event.incarnation} was fenced: the job continues without that process"
            )
        if event.incarnation > node.incarnation:
            raise errors.BadInput(f"{event.role} is incarnation {event.incarnation}; expected {node.incarnation}")
        process = node.process
        if node.state is NodeState.EXPECTED:
            node.move(NodeState.JOINED, at=at, why="joined")
            process.pid, process.birth = event.pid, event.birth
            self.run_if_ready(at)
        elif (process.pid, process.birth) != (event.pid, event.birth):
            raise errors.BadInput(f"a second process wants to join as {node.role}; the first is {node.state}")
        node.heard_at = at
        return []

    def _ready(self, node: RoleNode, address: str, at: float) -> list[actions.JobAction]:
        if node.address == address:
            return []
        if node.address:
            raise errors.BadInput(f"{node.role} is already ready at {node.address}, and now reports {address}")
        node.address, node.coming = address, False
        if not self.safety.placed:
            return self.place_slots(at)
        self.run_if_ready(at)
        roles.drain_surplus(self.nodes, self.servers_wanted, at)
        return [actions.ServerReturned(node.role, node.incarnation, address)]

    # ---- leaving ----

    def _finish(self, event: events.ScriptFinished, at: float) -> list[actions.JobAction]:
        node = self.node(event.role)
        if node.departure.finished or self.fenced(event.role, event.incarnation):
            return []  # the event is repeated or outdated
        if self.phase is JobPhase.STARTING:
            raise errors.BadInput(f"{event.role} has finished before the job's servers were ready")
        drained = node.state is NodeState.DRAINING
        node.move(NodeState.FINISHED, at=at, why="drained" if drained else "the script ended")
        fence = actions.FenceWorker(node.role, node.incarnation, "its script has ended")
        self.ending.untrained, self.ending.poisoned = event.untrained, event.poisoned
        return [fence, *self.end_if_done()]

    def _script_failed(self, event: events.ScriptFailed, at: float) -> list[actions.JobAction]:
        if self.fenced(event.role, event.incarnation):
            return []
        if event.blame is Blame.USER:
            return self.fail(event.error, event.blame, event.trace)
        faults = self.node(event.role).faults
        # only record the error, because the process exits now and its exit event leads to a decision
        faults.said, faults.trace = event.error, event.trace
        return []

    def _exited(self, ended: RoleExit, at: float) -> list[actions.JobAction]:
        node = self.node(ended.role)
        if ended.incarnation != node.incarnation or node.state is NodeState.GONE:
            return []  # the event is about an earlier incarnation, which was already handled
        if ended.unplaced and (smaller := evictions.continue_without(self, node, ended, at)) is not None:
            return smaller
        if ended.role.kind is RoleKind.SERVER:
            return self._server_lost(node, recovery.after_exit(node, ended, self.spec, at=at), at)
        if node.state is NodeState.FINISHED:
            node.move(NodeState.GONE, at=at, why=str(ended))
            return self.end_if_done()
        if self.phase is JobPhase.DRAINING or node.state is NodeState.DRAINING:
            return [*self._fence(node, str(ended), at), *self.end_if_done()]
        if ended.clean and node.state is NodeState.EXPECTED:
            return self.fail(
                f"{ended.role}: the script ended without calling st.join(), so there was nothing to train. "
                "Call both st.join() and job.prepare(...) in the script; `springtide demo` shows where.",
                Blame.USER,
            )
        verdict = recovery.after_exit(node, ended, self.spec, at=at, healing=self.healing)
        return self._worker_lost(node, verdict, at)

    def _worker_lost(
        self, node: RoleNode, verdict: recovery.Relaunch | recovery.FailJob, at: float
    ) -> list[actions.JobAction]:
        reported = node.faults.said
        if isinstance(verdict, recovery.FailJob):
            if not reported:
                return self.fail(verdict.error, verdict.blame)
            suspicion = recovery.Suspicion(at, verdict.error, node.faults.trace)
            self.ending.suspicion = self.ending.suspicion or suspicion
            # wait, because the exit of another role may be the cause, and the error to show is then that role's error
            return []
        fence = actions.FenceWorker(node.role, node.incarnation, verdict.why)
        after_s = max(verdict.after_s, EXPLANATION_S) if reported else verdict.after_s
        self.relaunch(node, verdict, after_s, at)
        return [fence, self.decide(recovery.relaunch_text(node, after_s), verdict.why)]

    def _server_lost(
        self, node: RoleNode, verdict: recovery.Relaunch | recovery.FailJob, at: float
    ) -> list[actions.JobAction]:
        trained = self.phase is not JobPhase.STARTING and not node.coming
        if node.coming and isinstance(verdict, recovery.FailJob):
            return [self.decide(*roles.give_up_server(self, node, verdict.error, at))]
        saves = recovery.may_begin_anew(self.spec, self.phase)
        verdict = recovery.after_server_loss(verdict, self.safety, trained=trained, saves=saves)
        if isinstance(verdict, recovery.FailJob):
            node.move(NodeState.GONE, at=at, why=verdict.error)
            trace = next((other.faults.trace for other in self.nodes.values() if other.faults.trace), "")
            return self.fail(verdict.error, verdict.blame, trace)
        lost = actions.ServerLost(node.role, node.incarnation, verdict.why)
        self.ending.suspicion = None  # the lost server explains the symptom
        self.safety.lost[node.role.rank] = self.safety.lost.get(node.role.rank, 0) + trained
        self.relaunch(node, verdict, verdict.after_s, at)
        if trained and (self.bsp.members or not self.safety.known):
            return [lost, *self._roll_back(verdict.why, at)]
        what = recovery.relaunch_text(node, verdict.after_s, self.safety.newest if trained else "")
        decisions: list[actions.JobAction] = [self.decide(what, verdict.why)]
        if verdict.starved and trained and (doubled := roles.double_servers(self, at)):
            decisions.append(self.decide(*doubled))
        return [lost, *decisions]

    def _roll_back(self, why: str, at: float) -> list[actions.JobAction]:
        """Roll the job back to the last checkpoint, or restart it if there is no checkpoint, unless the job should fail
        or stop."""
        if not self.safety.known and not recovery.may_begin_anew(self.spec, self.phase):
            return self.fail(f"{why}; there was no complete checkpoint yet", Blame.INFRASTRUCTURE)
        if self.phase is JobPhase.DRAINING:
            return self.end(JobPhase.STOPPED, f"{self.why}; {why}: the newest state is {self.safety.newest}")
        return bsp_group.roll_back(self, why, at=at)

    def _fence(self, node: RoleNode, why: str, at: float) -> list[actions.JobAction]:
        node.move(NodeState.GONE, at=at, why=why)
        return [actions.FenceWorker(node.role, node.incarnation, why)]

    # ---- scaling and commands ----

    def _scale_workers(self, event: events.WorkersScaled, at: float) -> list[actions.JobAction]:
        self.refuse_if_draining()
        most = self.spec.most_gpu_workers
        if most is not None and max(self.workers, most) < event.workers:
            raise errors.BadInput(
                f"{event.workers} workers with {self.spec.worker_gpu:g} GPU each: job {self.spec.name} may use "
                f"{self.spec.gpus} GPUs, enough for {most}"
            )
        change = roles.worker_change(self.nodes, event.workers)
        change = bsp_group.defer(change, self.bsp.members) if self.bsp.in_step else change
        return roles.scale_workers(self, event, change, at)

    def _apply_plan(self, event: plan.PlanEvent, at: float) -> list[actions.JobAction]:
        decided = plan.apply(self, event, at)
        done: list[actions.JobAction] = []
        if decided:
            done.append(self.decide(*decided, told=isinstance(event, events.PlanTaken)))
        if isinstance(event, events.BoundsChanged):
            for move in plan.moves_into_bounds(self, event.why):
                done += self.handle(move, at=at)
        return done

    def _advance_plan(self, event: events.PlanAdvanced, at: float) -> list[actions.JobAction]:
        """Make the next change of the plan. End the plan when it is complete, or when a change is impossible."""
        move, planned = plan.next_move(self), self.planned
        if move is None:
            return []
        done: list[actions.JobAction] = []
        if isinstance(move, events.PlanEnded) and not move.why:
            done.append(actions.PlanCompleted(str(planned.target), planned.why))
        try:
            largest = event.largest_group
            if isinstance(move, events.WorkersScaled) and largest is not None and move.workers > largest:
                raise errors.BadInput(f"{move.workers} workers cannot share a batch of {largest} samples")
            return [*done, *self.handle(move, at=at)]
        except errors.BadInput as refused:
            return [*done, *self.handle(events.PlanEnded(planned.stage, str(refused)), at=at)]

    def _stop(self, why: str, at: float) -> list[actions.JobAction]:
        if self.phase is JobPhase.DRAINING:
            return []
        if self.phase is JobPhase.STARTING:
            self.ending.last_save = "nothing was trained"
        self.enter(JobPhase.DRAINING, why)
        waited = [node for node in self.of_kind(RoleKind.WORKER) if node.state is NodeState.EXPECTED]
        fences = [action for node in waited for action in self._fence(node, "not needed any more", at)]
        return [actions.DrainWorkers(why), *fences, *self.end_if_done()]

    def _overdue(
        self, event: events.RoleSilent | events.RoleLate | events.DrainOverdue, at: float
    ) -> list[actions.JobAction]:
        node = self.node(event.role)
        if node.incarnation != event.incarnation or node.state not in (NodeState.EXPECTED, *ALIVE):
            return []
        if isinstance(event, events.DrainOverdue):
            return [*self._fence(node, f"not drained within {self.spec.drain_s:g} s", at), *self.end_if_done()]
        if isinstance(event, events.RoleLate) and node.coming:
            return [self.decide(*roles.give_up_server(self, node, f"silent for {event.silent_s:.0f} s", at))]
        if isinstance(event, events.RoleLate):
            others = any(other.state in (*ALIVE, NodeState.FINISHED) for other in self.of_kind(RoleKind.WORKER))
            late = recovery.never_joined(node, event.silent_s, others=others)
            return self.fail(late.error, late.blame)
        verdict = recovery.after_silence(node, event.silent_s, self.patience_s(node.role.kind), self.spec, at=at)
        if node.role.kind is RoleKind.SERVER:
            return self._server_lost(node, verdict, at)
        if self.phase is JobPhase.DRAINING or node.state is NodeState.DRAINING:
            return [*self._fence(node, "silent while draining", at), *self.end_if_done()]
        return self._worker_lost(node, verdict, at)
