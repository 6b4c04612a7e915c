"""Runs the parameter server process: `python -m springtide.server.__main__`, configured by the environment.

In: the master's address, this server's name, and the job's secret (`config`). Out: a `ServerRole` that serves the
data plane until the job ends. The server's heartbeats carry its counters to the master.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator

import msgspec

from springtide import child_guard, config, errors
from springtide.checkpoint.format.storage import FileStore
from springtide.checkpoint.transfer import claims
from springtide.checkpoint.transfer.file_transfer import ScatteredStore
from springtide.domain.core.roles import Placement, RoleKind
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import MemberReport, SlotHoldings
from springtide.rpc.transport import channel
from springtide.server import checkpoints, recovery, slot_loads
from springtide.server import mirror as mirrors
from springtide.server.migration import SlotHandover
from springtide.server.server import ServerRole
from springtide.telemetry import logs
from springtide.telemetry.host.usage import OwnUsage

log = logging.getLogger(__name__)
MASTER_LOST = "no heartbeat reaches a master any more"
TIDY_S = 1.0  # most seconds to delete this job's files from the disk when the job ends


def main() -> int:
    settings = config.load()
    child_guard.die_with(settings.parent)
    logs.log_to_stderr(debug=settings.debug)
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)  # the agent decides when this process stops
    try:
        serve(settings, over)
    except errors.SpringtideError as error:
        log.error("%s", error)
        return 1
    return 0


def serve(settings: config.Settings, over: threading.Event) -> None:
    secret = config.job_secret(settings)
    link = channel.for_member(settings, secret)
    try:
        rank = config.own_rank(settings, RoleKind.SERVER)
        hello = messages.JoinServer(rank, os.getpid(), settings.incarnation, birth=channel.BIRTH)
        welcome = link.ask(hello)
        assert isinstance(welcome, messages.ServerWelcome)
        link.introduce(msgspec.structs.replace(hello, welcomed=True))
        role = ServerRole(
            index=rank,
            slots=welcome.spec.slots,
            seed=welcome.spec.seed,
            workers=welcome.spec.workers,
            secret=secret,
            host=channel.own_host(settings, link),
            certificates=settings.tls,
        )
        try:
            with saves(role, link, welcome, settings, over) as scattered:
                serve_job(role, link, welcome, over, OwnUsage(settings), scattered)
        finally:
            role.stop(drain_s=2.0)  # two seconds suffice to drain, because the workers have already left
    finally:
        link.close()


@contextlib.contextmanager
def saves(
    role: ServerRole,
    link: channel.MasterChannel,
    welcome: messages.ServerWelcome,
    settings: config.Settings,
    over: threading.Event,
) -> Iterator[FileStore | None]:
    """If the job makes checkpoints, save them on the master's orders. Yield the store from which to restore slots.

    The server also keeps copies of other servers' files, and serves and uploads the files on a local disk.
    """
    if not welcome.checkpoints:
        yield None
        return
    life, secret, tls = f"{settings.member}.{settings.incarnation}", config.job_secret(settings), settings.tls
    disk = claims.find_disk(
        welcome.checkpoints, welcome.run, welcome.claim, scratch=settings.scratch, node=settings.node
    )
    mirror = taking = None
    if welcome.spec.checkpoints.mirror or disk.node:
        mirror = mirrors.Mirror(
            disk.folder,
            settings.member,
            life,
            secret,
            run=welcome.run,
            certificates=tls,
            asked=welcome.spec.checkpoints.mirror,
        )
    with contextlib.ExitStack() as stack:
        if mirror is not None:
            own, host = disk.folder / settings.member, channel.own_host(settings, link)
            taking = mirrors.MirrorServer(own, secret, host, certificates=tls)
            stack.callback(taking.close)
        takes_at, sweep = (taking.address, taking.sweep) if taking is not None else ("", None)
        saver = checkpoints.SlotSaver(
            role, disk.folder, life, run=welcome.run, node=disk.node, mirror=mirror, sweep=sweep
        )
        thread = checkpoints.start(saver, link.ask, over, takes_at, disk.node)
        if disk.node:
            stack.callback(thread.join, TIDY_S)
            log.info(
                "this server does not see %s; it writes its part of checkpoints to %s", welcome.checkpoints, disk.folder
            )
            mirrors.start_uploads(disk.folder, link.ask, over)
        scattered = ScatteredStore(welcome.checkpoints, disk.folder, link.ask, secret, certificates=tls)
        yield stack.enter_context(contextlib.closing(scattered))


def serve_job(
    role: ServerRole,
    link: channel.MasterChannel,
    welcome: messages.ServerWelcome,
    over: threading.Event,
    usage: OwnUsage,
    scattered: FileStore | None = None,
) -> None:
    ends: list[str] = []
    """Reasons for the end of this server, other than a signal."""

    def on_reply(reply: messages.HeartbeatReply) -> None:
        role.hurried = reply.hurry
        if reply.stop or reply.fenced:
            ends.append("the job is over" if reply.stop else "the job continues without this process")
            over.set()
        if reply.goal is not None:
            handing.follow(reply.goal)

    def now() -> messages.Heartbeat:
        speaks_of_slots = placed_at.is_set() and not handing.hurried
        return beat(role, handing.holding if speaks_of_slots else None, usage)

    def answer() -> None:
        reply = link.ask(now)
        assert isinstance(reply, messages.HeartbeatReply)
        on_reply(reply)

    def on_lost() -> None:
        ends.append(MASTER_LOST)
        over.set()

    placed_at = threading.Event()
    handing = SlotHandover(role, link.ask, answer)
    link.start_heartbeat(welcome.spec.heartbeat_s, now, on_reply, on_lost)
    placement = begin_serving(role, link, welcome, scattered)
    placed_at.set()
    log.info("serving %d of %d slots", len(placement.slots_of(role.index)), len(placement.server_of_slot))
    over.wait()
    log.info("ending: %s", ends[0] if ends else "SIGTERM")
    handing.stop()
    if ends[:1] == [MASTER_LOST]:
        raise errors.JobFailed(MASTER_LOST)


def begin_serving(
    role: ServerRole, link: channel.MasterChannel, welcome: messages.ServerWelcome, scattered: FileStore | None
) -> Placement:
    """Restore this server's slots, listen, and return the placement of the slots. The master learns the address."""
    source = recovery.RestoredFrom("", 0)
    if welcome.restore is not None:
        try:
            source = recovery.bring_back(role.store, welcome.restore, scattered)
        except errors.SpringtideError as error:
            link.ask(messages.ServerReady("", error=str(error)))
            raise
    if welcome.generation:
        role.restart_group(generation=welcome.generation, workers=welcome.spec.workers)
    if welcome.placement is not None:
        role.place(welcome.placement)
    address = role.start()
    log.info("listening at %s", address)
    placed = link.ask(
        messages.ServerReady(address, source.number, source.where, spared=source.spared, unusable=source.unusable)
    )
    assert isinstance(placed, messages.PlacementReply)
    if welcome.placement is None:
        role.place(placed.placement)
    elif placed.placement.slots_of(role.index) != welcome.placement.slots_of(role.index):
        raise errors.JobFailed(
            "the slots of this server changed during the restore, so its next incarnation must restore them again"
        )
    return placed.placement


def beat(role: ServerRole, holding: SlotHoldings | None, usage: OwnUsage) -> messages.Heartbeat:
    counts = slot_loads.pack(role.slot_counts()) if holding is not None else b""
    report = MemberReport(counters=role.counters())
    return messages.Heartbeat(report, slots=counts, holding=holding, usage=usage.read())


if __name__ == "__main__":
    sys.exit(main())
