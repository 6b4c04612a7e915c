"""Builds the parts of a master in dependency order."""

from springtide.master.autoscale import online_loop
from springtide.master.autoscale.loop import AdviserSetup, Autoscaler
from springtide.master.checkpoint.round import CheckpointStore
from springtide.master.checkpoint.schedule import CheckpointSchedule
from springtide.master.core.context import MasterContext
from springtide.master.data.data_workers import DataWorkerManager
from springtide.master.data.leases import LeaseService, PartitionAssigner
from springtide.master.data.shared_values import SharedValues
from springtide.master.servers.bsp_group import BspRendezvous
from springtide.master.servers.guards import ServerGuards
from springtide.master.servers.migration import SlotMigration
from springtide.master.servers.recovery import ServerRecovery


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
