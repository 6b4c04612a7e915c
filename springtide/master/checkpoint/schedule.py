"""Schedules checkpoints in the master's event loop: when a round begins, which servers take part, and how it ends.

In: ticks, and reports of servers. Out: events, journal entries and event-log lines. Next: `master.checkpoint.round`.
"""

import asyncio
import logging
from collections.abc import Mapping

import msgspec

from springtide import errors
from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.manifest import Manifest
from springtide.data.ledger.passes import JobProgress
from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.model.tables import SHARED_KEY
from springtide.domain.spec.job_spec import JobPhase
from springtide.embedding.placement import placement
from springtide.job.core import events, nodes
from springtide.job.core.nodes import ALIVE, NodeState
from springtide.master.checkpoint.round import CheckpointStore, note_of, scripts_of
from springtide.master.checkpoint.server_disks import (
    ALONE,
    FileDirectory,
    MirrorDirectory,
    ServerCopies,
    cost_of_a_host,
    server_of,
)
from springtide.master.checkpoint.uploads import Uploads
from springtide.master.core.context import MasterContext
from springtide.rpc.messages import messages
from springtide.rpc.messages.checkpoints import SaveOrder, SaveReport, SaveRequest
from springtide.rpc.messages.coordination import AtStep
from springtide.rpc.messages.data_workers import PACKAGE_KEY
from springtide.rpc.messages.types import RestoreOrder

log = logging.getLogger(__name__)
HOLD_S = 10.0  # longest time to hold a server's request for orders


class CheckpointSchedule:
    """The checkpoints of one job, one round at a time."""

    def __init__(self, saving: CheckpointStore, context: MasterContext) -> None:
        self.saving, self._context, self._clock = saving, context, context.clock
        self.buddies = MirrorDirectory(saving.rules)
        self._copying = ServerCopies(saving.rules.url, context.changed, term=saving.term)
        self.uploading = Uploads(
            saving.rules,
            saving.folder,
            saving.claim,
            context.log_event,
            self._copying,
            self._uploaded,
            holders=lambda: self.buddies.holders(self._coming(), ()).addresses,
        )
        self.storing = FileDirectory(saving.place, self.buddies, self._copying, lives=self._coming)
        self._cost = ""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def folder(self) -> str:
        return str(self.saving.folder.absolute()) if self.saving.rules.on else ""

    @property
    def waited_for(self) -> bool:
        record = self._context.record
        return self.saving.round is not None and (record.book.waits_to_end or record.state.saving_last)

    @property
    def trouble(self) -> str:
        alone = self._cost if ALONE in self._cost else ""
        troubles = (self.saving.trouble, self.saving.unmirrored, self.uploading.trouble, alone)
        return "; ".join(filter(None, troubles))

    def resume(self) -> None:
        rules, context, lineage = self.saving.rules, self._context, self.saving.lineage
        manifest = checkpoint_io.read(rules.resume, rules.resume_number, lineage=lineage) if rules.resume else None
        self.saving.begin_run()
        if manifest is not None:
            # do not copy the data workers' package, because it is in the folder of the other run
            claims = tuple(key for key in manifest.scripts.claims if key != PACKAGE_KEY)
            scripts = msgspec.structs.replace(scripts_of(manifest, rules), claims=claims)
            context.journaled(context.record.resume, note_of(manifest), scripts)
            if manifest.outline:
                context.journaled(context.record.shared.share, SHARED_KEY, manifest.outline)
            event, samples = "new_data" if rules.new_data else "resumed", manifest.progress.samples
            context.log_event(event, number=manifest.number, where=rules.resume, samples=samples)

    def restore_for(self, rank: int) -> RestoreOrder | None:
        """Return the slots that a server must restore, from the run to resume, before the first placement."""
        rules, spec = self.saving.rules, self._context.record.state.spec
        if not rules.resume or self._context.record.state.phase is not JobPhase.STARTING:
            return None
        slots = placement.even(spec.slots, spec.servers).slots_of(rank)
        return RestoreOrder(rules.resume, rules.resume_number, slots, self.saving.lineage)

    def take_over(self) -> None:
        """Continue from the checkpoints of the previous master, whose last checkpoint may be missing in the journal."""
        record = self._context.record
        if number := self.saving.take_over(record.state.safety.saved or 0, record.book.era):
            why = "the master was replaced during the checkpoint"
            self._context.log_event("checkpoint", number=number, outcome="abandoned", why=why)
        last, saved = self.saving.last, record.state.safety.saved
        apart = last.apart if last is not None else saved is not None
        # the disks of servers may hold checkpoints with numbers that the master does not know
        self.buddies.must_all_speak |= bool(apart)
        if last is not None and last.number != saved:
            self._context.apply(events.CheckpointSaved(last.number))

    def went_back(self, number: int) -> None:
        last = self.saving.last
        if last is None or last.number != number:
            self.saving.go_back(number)
            self._context.apply(events.CheckpointSaved(number))
        # if a round is in progress, its note is older than the rollback and counts samples that restored slots lack
        self._check_lives()

    def poll(self) -> None:
        saving, record, now = self.saving, self._context.record, self._clock()
        if not saving.rules.on:
            return
        lives = self._check_lives()
        self._tell_cost()
        self._copying.poll({server_of(life) for life in lives.values()})
        final = record.state.saving_last and saving.round is None and saving.covers(record)
        waits = record.book.waits_to_end and saving.unsure and saving.covers(record)
        first = saving.unsure and not self.uploading.done
        on_its_way = self.uploading.poll(saving.last, now, hurry=final or waits or first)
        if waits and not on_its_way:
            assert saving.last is not None
            self._end_without(saving.last.number, f"it could not be copied to {saving.rules.url}")
        if record.state.saving_last and saving.round is None and not (final and on_its_way):
            self._last_one()
        begin, hurry = saving.due(record, now)
        if begin and len(lives) == len(nodes.needed_servers(record.state.nodes)) and self.buddies.known(lives):
            order = saving.begin(record, lives, hurry=hurry, at=now)
            log.info("checkpoint %d begins; the previous checkpoint is %d", order.number, order.base)
            self._context.changed.wake_all()

    def hasten(self) -> None:
        """Let the next checkpoint begin now instead of at the end of the interval."""
        name, phase = self._context.state.spec.name, self._context.state.phase
        if not self.saving.rules.on:
            raise errors.BadInput(f"job {name} makes no checkpoints: --checkpoint-every is 0")
        if phase is not JobPhase.RUNNING:
            raise errors.BadInput(f"job {name} is {phase}, so it begins no checkpoint now")
        self.saving.hasten(self._clock())

    def due_at_step(self, *, last: bool = False) -> int:
        """Return the number of the checkpoint for which a bsp group should pause, because the interval has passed or
        the group ends. Return 0 if no checkpoint is due.
        """
        record = self._context.record
        return self.saving.due_at_step(record, self._clock(), last=last) if record.state.bsp.in_step else 0

    async def at_step(self, request: AtStep) -> messages.Ok | messages.WaitReply:
        """Take a checkpoint while the group's lowest rank waits after a step. `WaitReply` means that no checkpoint
        is possible now.

        The checkpoint holds exactly the state after this step. No rank can complete the next step without the
        pausing rank, and only the master lets that rank continue or forms a new group. Parts that arrive after a new
        group has formed do not count.
        """
        saving, state, changed = self.saving, self._context.state, self._context.changed
        if request.last:
            await changed.until(lambda: saving.round is None or state.phase.over)
            if saving.last is not None and saving.last.progress.step == request.step:
                return messages.Ok()
        # in all other cases, the request is outdated
        if saving.round is None and (request.last or request.number == self.due_at_step(last=True)):
            self._begin_at_step(request)
        if saving.round is None:
            return messages.WaitReply()
        number = saving.round.order.number

        def copied() -> bool:
            now = saving.round
            if now is None or now.order.number != number or state.phase.over:
                return True
            return now.publishing and not request.last

        await changed.until(copied)
        return messages.Ok()

    def _begin_at_step(self, request: AtStep) -> None:
        saving, record, now = self.saving, self._context.record, self._clock()
        lives = self._check_lives()
        servers = nodes.needed_servers(record.state.nodes)
        if not saving.due_at_step(record, now, last=True) or len(lives) != len(servers):
            return
        note = record.book.note(request.shard, request.first)
        order = saving.begin(record, lives, hurry=True, at=now, note=note, step=request.step)
        log.info("checkpoint %d begins after step %d", order.number, request.step)
        self._context.changed.wake_all()

    async def order_for(
        self, role: Role, incarnation: int, request: SaveRequest
    ) -> SaveOrder | messages.WaitReply | messages.HeartbeatReply:
        saving, state = self.saving, self._context.record.state
        self.buddies.on_listening(role, incarnation, request)
        saving.passed(request.number)

        def order() -> SaveOrder | None:
            order = saving.round.order if saving.round is not None else None
            known = (request.term, request.number, request.part)
            new = order is not None and (order.term, order.number, order.part) != known
            if not new or order is None:
                return None
            return self.buddies.named(order, role, self._lives(), self._retained())

        await self._context.changed.until(lambda: state.phase.over or order() is not None, at_most_s=HOLD_S)
        if state.phase.over:
            elsewhere = saving.last is not None and self.uploading.done >= saving.last.number
            return messages.HeartbeatReply(stop=True, tidy=elsewhere)
        return order() or messages.WaitReply()

    def on_report(self, role: Role, incarnation: int, report: SaveReport) -> None:
        lives = self._check_lives()
        answer = self.saving.on_report(f"{role}.{incarnation}", report, self._context.record, self._owners(lives))
        self._go_on(answer, "failed" if report.error else "abandoned")

    # ---- inside ----

    def _retained(self) -> list[Manifest]:
        """Return the checkpoints whose files must not be deleted."""
        return [*self.saving.kept, *([self.uploading.running] if self.uploading.running else [])]

    def _owners(self, lives: Mapping[int, str]) -> dict[int, str]:
        placed = self._context.record.slots.placement
        return {slot: lives.get(rank, "") for slot, rank in enumerate(placed.server_of_slot)} if placed else {}

    def _go_on(self, answer: Manifest | str | None, outcome: str) -> None:
        if isinstance(answer, Manifest):
            task = asyncio.get_running_loop().create_task(self._publish(answer))
            self._tasks.add(task)
            task.add_done_callback(self._published)
            self._context.changed.wake_all()
        elif answer is not None:
            self._give_up(answer, outcome)
        else:
            self._context.changed.wake_all()

    async def _publish(self, manifest: Manifest) -> None:
        try:
            await asyncio.to_thread(self.saving.publish, manifest, self.uploading.running)
        except errors.BadInput as error:  # another run has permanently taken over the folder
            self._give_up(str(error), "failed", again=False)
            return
        except OSError as error:
            self._give_up(f"its manifest cannot be written to {self.saving.folder}: {error.strerror}", "failed")
            return
        self._check_lives()
        now = self.saving.round
        if now is None or now.order.number != manifest.number:
            await asyncio.to_thread(self.saving.withdraw, manifest)
            return  # a server was lost during publication; the next round begins after its recovery
        note = self.saving.complete(manifest)
        if note is not None and not self.saving.unsure:
            self._keep(note, floors=not self.saving.rules.url)
        self._context.apply(events.CheckpointSaved(manifest.number))
        files = ", ".join(now.lost)
        anew = f"{files} of earlier checkpoints are missing or damaged; their content is written again in full"
        self._context.log_event(
            "checkpoint",
            number=manifest.number,
            outcome="complete",
            full=manifest.full,
            bytes=manifest.bytes_written,
            seconds=round(manifest.completed_at - manifest.begun_at, 3),
            cpu_s=round(now.cpu_s, 4),
            samples=manifest.progress.samples,
            begun_at=manifest.begun_at,
            where=str(self.saving.folder),
            **({"mirror": now.unmirrored or "complete"} if self.saving.rules.mirror or manifest.mirrored else {}),
            **({"why": anew} if now.lost else {}),
        )
        self._context.changed.wake_all()
        self.poll()

    def _published(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("a checkpoint could not be published", exc_info=error)
            self._give_up(f"{type(error).__name__}: {error}", "failed")

    async def _drop(self, number: int) -> None:
        try:
            await asyncio.to_thread(self.saving.drop, number, self._retained())
        except OSError as error:
            log.warning("the remaining files of checkpoint %d cannot be deleted: %s", number, error)

    def _give_up(self, why: str, outcome: str, *, again: bool = True) -> None:
        number = self.saving.abandon(why, self._clock(), again=again)
        log.warning("checkpoint %d %s: %s", number, outcome, why)
        self._context.log_event("checkpoint", number=number, outcome=outcome, why=why)
        task = asyncio.get_running_loop().create_task(self._drop(number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._context.changed.wake_all()
        if outcome != "failed":
            return
        record = self._context.record
        if record.book.waits_to_end:
            self._end_without(number)
        if record.state.saving_last:
            self._context.apply(events.FinalCheckpointDone(f"the last checkpoint failed: {why}"))

    def _end_without(self, number: int, why: str = "") -> None:
        reason = "; ".join(filter(None, (why, "the workers' pass over the data ends without this checkpoint")))
        self._context.log_event("checkpoint", number=number, outcome="skipped", why=reason)
        self._keep(self._context.record.book.note(), floors=True)
        self._context.changed.wake_all()

    def _keep(self, note: JobProgress, *, floors: bool) -> None:
        """Journal that the samples in this note are on disk. With `floors`, the job will never roll back to a state
        before the note.
        """
        self._context.journaled(self._context.record.book.keep, note, floors=floors)

    def _uploaded(self, manifest: Manifest | None) -> None:
        """Handle the end of an upload. `manifest` is None if the upload failed."""
        note = self.saving.is_stored(manifest) if manifest is not None else None
        if note is not None:
            self._keep(note, floors=True)
            self._context.changed.wake_all()
        self.poll()

    def _tell_cost(self) -> None:
        lives = self._coming()
        if not self.buddies.spoken(lives):
            return
        nodes = self.buddies.nodes(lives)
        in_step = self._context.record.state.spec.sync == "bsp"
        cost = cost_of_a_host(self.saving.rules, nodes, len(lives), in_step=in_step)
        if cost != self._cost:
            self._cost = cost
            log.info("%s", cost or "all servers see the job's folder")
            if cost:
                self._context.log_event("disks", why=cost, nodes=nodes)

    def _last_one(self) -> None:
        """After all workers have ended, finish the job if the last checkpoint covers everything."""
        record, last = self._context.record, self.saving.last
        if record.span.leased_at is None or (record.state.bsp.in_step and last is None):
            self._context.apply(events.FinalCheckpointDone("there is nothing to save"))
        elif last is not None and self.saving.covers(record):
            self._context.apply(events.FinalCheckpointDone(f"checkpoint {last.number} is the final checkpoint"))

    def _check_lives(self) -> Mapping[int, str]:
        lives = self._lives()
        if self.saving.round is None:
            return lives
        servers = self._context.record.state.of_kind(RoleKind.SERVER)
        gone = [node for node in servers if node.state is NodeState.GONE and node.departure.removed]
        if self.saving.left(frozenset(f"{node.role}.{node.incarnation}" for node in gone)):
            self._go_on(self.saving.check_slots(self._context.record, self._owners(lives)), "abandoned")
        now = self.saving.round
        if now is not None and (lost := sorted(now.lives - set(lives.values()))):
            self._give_up(f"{', '.join(lost)} was lost during the checkpoint", "abandoned")
        elif now is not None and now.era != self._context.record.book.era:
            self._give_up(
                "a server joined after the checkpoint began, and its restore rolled the ledger back",
                "abandoned",
            )
        return lives

    def _coming(self) -> Mapping[int, str]:
        servers = nodes.needed_servers(self._context.record.state.nodes)
        return {node.role.rank: f"{node.role}.{node.incarnation}" for node in servers}

    def _lives(self) -> Mapping[int, str]:
        servers = nodes.needed_servers(self._context.record.state.nodes)
        return {node.role.rank: f"{node.role}.{node.incarnation}" for node in servers if node.state in ALIVE}
