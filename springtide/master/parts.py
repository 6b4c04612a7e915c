"""Builds the parts of a master in dependency order.

In: the `MasterContext`, the checkpoint store, and the job's adviser. Out: `MasterParts`, for `master.handlers` and
`master.dispatcher`.
"""

from dataclasses import dataclass

from springtide.master.autoscale import online_loop
from springtide.master.autoscale.loop import AdviserSetup, Autoscaler
from springtide.master.autoscale.online_loop import OnlineAutoscaler
from springtide.master.checkpoint.bsp_stop import BspCheckpoints
from springtide.master.checkpoint.round import CheckpointStore
from springtide.master.checkpoint.schedule import CheckpointSchedule
from springtide.master.core.context import MasterContext
from springtide.master.data.data_workers import DataWorkerManager
from springtide.master.data.leases import LeaseService
from springtide.master.data.partitions import PartitionAssigner
from springtide.master.data.shared_values import SharedValues
from springtide.master.servers.bsp_group import BspRendezvous
from springtide.master.servers.guards import ServerGuards
from springtide.master.servers.migration import SlotMigration
from springtide.master.servers.recovery import ServerRecovery


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterParts:
    """All parts of one master."""

    checkpoints: CheckpointSchedule
    bsp_checkpoints: BspCheckpoints
    recovery: ServerRecovery
    leases: LeaseService
    shared: SharedValues
    migration: SlotMigration
    rendezvous: BspRendezvous
    guards: ServerGuards
    autoscaler: Autoscaler
    online: OnlineAutoscaler
    partitions: PartitionAssigner
    data_workers: DataWorkerManager


def build_parts(context: MasterContext, store: CheckpointStore, advised: AdviserSetup | None) -> MasterParts:
    checkpoints = CheckpointSchedule(store, context)
    bsp_checkpoints = BspCheckpoints(context, checkpoints)
    recovery = ServerRecovery(context, checkpoints)
    leases = LeaseService(context, recovery, checkpoints)
    shared = SharedValues(context)
    migration = SlotMigration(context)
    rendezvous = BspRendezvous(context, migration, bsp_checkpoints)
    guards = ServerGuards(context, migration)
    autoscaler = Autoscaler(context, guards, migration, advised)
    online = online_loop.open_autoscaler(context)
    return MasterParts(
        checkpoints=checkpoints,
        bsp_checkpoints=bsp_checkpoints,
        recovery=recovery,
        leases=leases,
        shared=shared,
        migration=migration,
        rendezvous=rendezvous,
        guards=guards,
        autoscaler=autoscaler,
        online=online,
        partitions=PartitionAssigner(context, leases.asked_at, online),
        data_workers=DataWorkerManager(context, shared, autoscaler),
    )
