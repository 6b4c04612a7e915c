"""Restores a lost server after `job.state` has decided to relaunch it: restores its slots, and rolls the ledger
back.

Next: `server.recovery` on the server, `data.ledger.passes` for the ledger.
"""

import asyncio

from springtide import errors
from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.manifest import Manifest
from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.core.validation import UNDECODABLE
from springtide.domain.data.leases import Grant
from springtide.domain.model.checkpoints import Lineage
from springtide.job.core import events
from springtide.master.checkpoint.round import note_of, scripts_of
from springtide.master.checkpoint.schedule import CheckpointSchedule
from springtide.master.core.context import MasterContext
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import RestoreOrder, ServerAddresses


class ServerRecovery:
    """Recovery of one job's servers: chooses the checkpoint and the slots, and rolls the ledger back."""

    def __init__(self, context: MasterContext, checkpoints: CheckpointSchedule) -> None:
        self._context, self._record, self._checkpoints = context, context.record, checkpoints
        self._folder = str(checkpoints.saving.folder.absolute())
        self._lineage = checkpoints.saving.lineage

    def to_bring_back(self, role: Role) -> RestoreOrder | None:
        """Return the slots and the checkpoint that a relaunched server must restore; None if no sample was trained yet.

        A server without slots also gets the declared tables, because workers do not declare them again.
        """
        state, placed = self._record.state, self._record.slots.placement
        if not state.node(role).incarnation or placed is None:
            return None
        slots = placed.slots_of(role.rank)
        rules, saved = state.spec.checkpoints, state.safety.saved
        if saved is not None:
            return RestoreOrder(self._folder, saved, slots, self._lineage, fallback=rules.url)
        origin = state.safety.origin
        return RestoreOrder(rules.resume, origin, slots, self._lineage) if origin else None

    async def ready(self, role: Role, incarnation: int, report: messages.ServerReady) -> None:
        """Record that a server is ready. If the server restored a checkpoint, also roll the ledger back, in the same
        call.
        """
        state = self._record.state
        if report.error:
            return self._context.apply(events.MasterFailed(f"{role} could not be restored: {report.error}"))
        resumed = state.spec.checkpoints.resume_number
        # the ledger is at the checkpoint from which the job resumed, so every server must restore the same checkpoint
        if report.restored and not incarnation and report.restored != resumed:
            only = f"{role} could restore only checkpoint {report.restored}, but the job continues from {resumed}"
            why = "; ".join((only, *report.unusable))
            return self._context.apply(
                events.MasterFailed(f"{why}. Start the job again with --resume; it skips unreadable checkpoints")
            )
        try:
            manifest = await self._manifest_of(report) if report.restored and incarnation else None
            note = None if manifest is None else note_of(manifest)
        except errors.JobFailed as error:
            return self._context.apply(events.MasterFailed(str(error)))
        if state.fenced(role, incarnation):
            raise errors.Fenced(f"{role} of incarnation {incarnation} was fenced during its recovery")
        new, again = state.node(role).address != report.address, 0
        if note is not None and new and state.bsp.in_step and state.safety.saved not in (None, report.restored):
            self._checkpoints.went_back(report.restored)
            only = f"{role} could restore only checkpoint {report.restored}"
            return self._context.apply(events.GroupLost("; ".join((only, *report.unusable))))
        if note is not None and new and (state.spec.recovery == "exact" or state.bsp.in_step):
            assert manifest is not None
            scripts = scripts_of(manifest, state.spec.checkpoints) if state.bsp.in_step else None
            again = self._context.journaled(self._record.restore, note, scripts)
        if note is not None and new and state.safety.saved is not None:
            self._checkpoints.went_back(report.restored)
        facts: dict[str, object] = {}
        if report.restored:
            facts = {"checkpoint": report.restored, "where": report.source, "samples_again": again}
        if report.spared:
            facts["mirror"] = "; ".join(report.spared)
        if report.unusable:
            facts["unusable"] = list(report.unusable)
        self._context.log_event("ready", role=str(role), address=report.address, incarnation=incarnation, **facts)
        self._context.apply(events.RoleReady(role, report.address, incarnation))

    async def _manifest_of(self, report: messages.ServerReady) -> Manifest:
        """Return the manifest that a server restored. If the manifest was deleted meanwhile, another server must have
        restored an older checkpoint. Then return the manifest of the older checkpoint, whose note is valid for both
        servers.
        """
        try:
            return await read_manifest(report.source, report.restored, self._lineage)
        except errors.JobFailed:
            saved = self._record.state.safety.saved
            if saved is None or saved >= report.restored:
                raise
            return await read_manifest(self._folder, saved, self._lineage)

    def servers(self) -> ServerAddresses | None:
        """Return the server addresses if a server was ever relaunched. If none was relaunched, return None, because
        workers know the first addresses."""
        lives = tuple(node.incarnation for node in self._record.state.of_kind(RoleKind.SERVER))
        return (
            ServerAddresses(self._record.slots.addresses, lives)
            if any(lives) and self._record.slots.addresses
            else None
        )

    def leased(self, grants: tuple[Grant, ...]) -> messages.LeaseReply:
        book = self._record.book
        return messages.LeaseReply(grants, book.era, self.servers(), book.cuts_of(grants))


async def read_manifest(where: str, number: int, lineage: Lineage) -> Manifest:
    try:
        manifest = await asyncio.to_thread(checkpoint_io.known, where, number, lineage=lineage)
        note_of(manifest)
    except (OSError, errors.BadInput, *UNDECODABLE) as error:
        raise errors.JobFailed(f"the ledger of checkpoint {number} in {where} cannot be read: {error}") from error
    return manifest
