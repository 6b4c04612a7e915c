"""Builds the parts of a master in the order of their dependencies, and a `JobStatus` from these parts."""

import itertools
from collections import Counter
from collections.abc import Mapping

from springtide.data.ledger.job_ledger import JobLedger
from springtide.domain.core.roles import RANKED, Role, RoleKind, RoleUsage
from springtide.job.core.nodes import ALIVE, NodeState
from springtide.master.autoscale import online_loop
from springtide.master.autoscale.loop import AdviserSetup, Autoscaler
from springtide.master.checkpoint.round import CheckpointStore
from springtide.master.checkpoint.schedule import CheckpointSchedule
from springtide.master.core.context import MasterContext
from springtide.master.core.progress import ProgressTally
from springtide.master.core.record import JobRecord
from springtide.master.data.data_workers import DataWorkerManager
from springtide.master.data.leases import LeaseService, PartitionAssigner
from springtide.master.data.shared_values import SharedValues
from springtide.master.servers.bsp_group import BspRendezvous
from springtide.master.servers.guards import ServerGuards
from springtide.master.servers.migration import SlotMigration
from springtide.master.servers.recovery import ServerRecovery
from springtide.rpc.messages.types import (
    CheckpointStatus,
    DataStatus,
    EpochProgress,
    JobStatus,
    MasterStatus,
    MemberReport,
    MemberView,
    PlanningStatus,
    RoleCount,
    RoleStatus,
    TrainingStatus,
)
from springtide.telemetry.output import redact


class MasterParts:
    """All parts of one master."""

    def __init__(self, context: MasterContext, store: CheckpointStore, advised: AdviserSetup | None) -> None:
        self.checkpoints = CheckpointSchedule(store, context)
        self.recovery = ServerRecovery(context, self.checkpoints)
        self.leases = LeaseService(context, self.recovery, self.checkpoints)
        self.shared = SharedValues(context)
        self.migration = SlotMigration(context)
        self.rendezvous = BspRendezvous(context, self.migration, self.checkpoints)
        self.guards = ServerGuards(context, self.migration)
        self.autoscaler = Autoscaler(context, self.guards, self.migration, advised)
        self.online = online_loop.open_autoscaler(context)
        self.partitions = PartitionAssigner(context, self.leases.asked_at, self.online)
        self.data_workers = DataWorkerManager(context, self.shared, self.autoscaler)


JOINED = ALIVE | {NodeState.FINISHED}
MOST_SHOWN = 20  # most batches with left-out samples to show, because a status is sent ten times a second


def status_of(
    context: MasterContext, parts: MasterParts, usage: Mapping[Role, RoleUsage], *, lag_s: float = 0.0
) -> JobStatus:
    record, state, now = context.record, context.record.state, context.clock()
    now = record.span.ended_at if record.span.ended_at is not None else now
    return JobStatus(
        name=state.spec.name,
        phase=state.phase,
        why=redact(state.why),
        elapsed_s=now - state.started_at,
        blame=state.ending.blame,
        detail=redact(state.ending.detail),
        samples=context.samples,
        training=training_status(record, context.tally, at=now),
        data=data_status(record, parts.data_workers),
        members=members(record, context.tally, usage),
        roles=role_status(parts, record, at=now),
        checkpoints=checkpoint_status(parts.checkpoints, record),
        master=MasterStatus(
            term=context.term,
            decision=redact(state.decision.what),
            decision_why=redact(state.decision.why),
            loop_lag_s=round(lag_s, 4),
            disk_trouble=redact(context.disk_trouble),
        ),
        planning=PlanningStatus(
            stage=state.planned.stage if state.spec.planning.on else "",
            shape=parts.autoscaler.shape,
            target=state.planned.target,
            settled=parts.autoscaler.settled,
        ),
        online=parts.online.status(context.clock()),
    )


def training_status(record: JobRecord, tally: ProgressTally, *, at: float) -> TrainingStatus:
    span, in_step = record.span, record.state.bsp.in_step
    grew_at = max(tally.grew_at or 0.0, span.trained_at)
    return TrainingStatus(
        trained_s=max(0.0, grew_at - span.leased_at) if span.leased_at is not None else 0.0,
        samples_before=span.samples_before,
        samples_per_s=tally.samples_per_s(at=at),
        loss=tally.loss,
        metrics=tally.metrics,
        staleness=None if in_step else tally.staleness("max"),
        staleness_p50=None if in_step else tally.staleness("p50"),
        cache=tally.cache,
    )


def data_status(record: JobRecord, data_workers: DataWorkerManager) -> DataStatus:
    book, totals = record.book, record.book.totals()
    return DataStatus(
        epoch=epoch_progress(book),
        shards_done=totals.done,
        shards_leased=totals.leased,
        shards_total=totals.total,
        epochs=book.epochs,
        feed=data_workers.together,
        poisoned=book.poisoned(),
        left_out=tuple(itertools.islice(record.left_out.values(), MOST_SHOWN)),
        samples_left_out=sum(len(batch.indices) for batch in record.left_out.values()),
    )


def epoch_progress(book: JobLedger) -> EpochProgress | None:
    """Return the progress of the newest pass, which may cover several epochs."""
    if not book.passes:
        return None
    data_pass = book.passes[-1]
    card = data_pass.card
    if card.endless or card.stream is not None or not card.samples_used:
        return None
    within = min(data_pass.samples_done // card.samples_used, card.epochs - 1)
    done = min(card.samples_used, data_pass.samples_done - within * card.samples_used)
    return EpochProgress(card.first_epoch + within + 1, done, card.samples_used)


def role_status(parts: MasterParts, record: JobRecord, *, at: float) -> RoleStatus:
    state = record.state
    alive = Counter(node.role.kind for node in state.nodes.values() if node.state in ALIVE)
    return RoleStatus(
        workers=RoleCount(alive[RoleKind.WORKER], state.workers),
        servers=RoleCount(alive[RoleKind.SERVER], state.servers_wanted),
        data_workers=RoleCount(alive[RoleKind.DATA_WORKER], state.feeding.wanted),
        data_workers_why=redact(parts.data_workers.why),
        lacks=redact(state.short.describe(at=at)),
        relaunches=state.relaunches,
        slots_moving=parts.migration.moving,
    )


def checkpoint_status(schedule: CheckpointSchedule, record: JobRecord) -> CheckpointStatus:
    last = schedule.saving.last
    return CheckpointStatus(
        number=last.number if last else 0,
        begun_at=last.begun_at if last else 0.0,
        trouble=redact(schedule.trouble),
        uploaded=schedule.uploading.done,
        saving_last=record.state.saving_last,
    )


def members(record: JobRecord, tally: ProgressTally, usage: Mapping[Role, RoleUsage]) -> tuple[MemberView, ...]:
    """Return every role of the job, servers first. Data workers are shown only while they are present."""
    return tuple(
        MemberView(
            role=node.role,
            alive=node.state is not NodeState.GONE,
            joined=node.state in JOINED,
            report=tally.reports.get(node.role, MemberReport()),
            incarnation=node.incarnation,
            state=node.state,
            usage=usage.get(node.role),
            pid=node.process.pid if node.state in ALIVE else 0,
        )
        for kind in RANKED
        for node in record.state.of_kind(kind)
        if kind is not RoleKind.DATA_WORKER or node.state is not NodeState.GONE
    )
