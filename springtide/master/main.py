"""Runs the master process: `python -m springtide.master.main RUN_DIR HOST PORT`.

In: a `JobSpec` in the run's `spec.json`, and the secret and the term in the environment. Out: an address or an error
in the run's master file (`rpc.transport.addresses`).
"""

import asyncio
import contextlib
import dataclasses
import gc
import logging
import os
import pathlib
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from springtide import child_guard, config, errors
from springtide.brain.service import advisers
from springtide.brain.service.advisers import AdviserThread
from springtide.checkpoint.transfer import claims
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobSpec
from springtide.master import metrics
from springtide.master.autoscale.loop import AdviserSetup
from springtide.master.checkpoint.round import CheckpointStore
from springtide.master.core.context import MasterContext
from springtide.master.core.journal import Journal
from springtide.master.core.progress import point_of
from springtide.master.core.record import JobRecord
from springtide.master.dispatcher import AWAY_S, MasterService
from springtide.master.parts import MasterParts
from springtide.rpc.transport import addresses
from springtide.rpc.transport.listener import RpcListener
from springtide.telemetry import events, logs, output, planner_views
from springtide.telemetry.progress import ProgressLog
from springtide.telemetry.prometheus import MetricsServer

log = logging.getLogger(__name__)
TICK_S = 0.25
TIDY_S = 5.0
ENDS_S = 10.0  # most seconds to wait for a store when the run ends


def main(arguments: list[str]) -> int:
    root, host, port = arguments
    settings = config.load()
    child_guard.die_with(settings.parent)
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # raise the limit on open files, because each of a thousand members or more has a connection
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    # leases and nodes live long, so frequent full garbage collections would only cost time
    gc.set_threshold(20_000, 20, 100)
    logs.log_to_stderr(debug=settings.debug)
    spec_text = logs.RunFiles(pathlib.Path(root)).spec.read_bytes()
    output.remember(spec_text.decode())
    spec = msgspec.json.decode(spec_text, type=JobSpec)
    secret = config.job_secret(settings)
    at = Listening(host, int(port), addresses.advertised(host, settings.host), settings.tls)
    return asyncio.run(serve(spec, pathlib.Path(root), at, secret, term=settings.incarnation))


class Listening(NamedTuple):
    """Address that a master binds, the name under which other hosts reach the master, and the master's certificates."""

    host: str
    port: int
    said: str
    certificates: str = ""


async def serve(spec: JobSpec, root: pathlib.Path, at: Listening, secret: bytes, *, term: int = 1) -> int:
    for ignored in (signal.SIGINT, signal.SIGHUP):
        # ignore these signals, because the agent decides when this process stops
        asyncio.get_running_loop().add_signal_handler(ignored, lambda: None)
    files = logs.RunFiles(root)
    try:
        story = events.EventLog(files.events)
    except OSError as error:
        return say_error(files, term, events.as_disk_error(error, files.events))
    service: MasterService | None = None
    try:
        journal = Journal(files.journal, term=term, now=time.time(), patience_s=spec.disk_s)
        service = open_service(spec, story, journal, advised_by(spec, files))
        listener = RpcListener(secret, service.handle, service.lost, term=term, certificates=at.certificates)
        address = await listener.start(at.host, at.port, at.said)
        exposing = await expose(service, files.root.name, spec.online.metrics_port)
    except (errors.UserError, errors.JobFailed) as error:
        if service is not None:
            give_up_places(service.parts.checkpoints.saving)
        with contextlib.suppress(errors.UserError):
            story.close()
        return say_error(files, term, error)
    log.info(
        "job %s: serving at %s, waiting for %d servers, %d workers", spec.name, address, spec.servers, spec.workers
    )
    addresses.write_master(files.master, found_at(at, address, term))
    history = ProgressLog(files.progress)
    beside = [asyncio.create_task(service.lag.watch()), asyncio.create_task(tidy(journal))]
    while not service.context.over.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(service.context.over.wait(), TICK_S)
        service.tick()
        if history.is_due(time.time()):
            history.add(point_of(service.status(), at=time.time()))
    history.add(point_of(service.status(), at=time.time()))
    for task in beside:
        task.cancel()
    await asyncio.gather(*beside, return_exceptions=True)
    await asyncio.gather(service.parts.autoscaler.close(), service.parts.online.close(), exposing.close())
    await listener.close()
    give_up_places(service.parts.checkpoints.saving)
    journal.close()
    try:
        story.close()
    except errors.UserError as error:
        log.warning("the end of the job's event log could not be written: %s", error)
    return 0


def give_up_places(saving: CheckpointStore) -> None:
    """Release the run's claims. If a store hangs, the end of the job does not wait for it, and its claim stays."""
    ending = threading.Thread(target=saving.end_run, daemon=True)
    ending.start()
    ending.join(ENDS_S)


def found_at(at: Listening, address: str, term: int) -> addresses.MasterLocation:
    near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(at.host, at.host)
    local = addresses.join(near, addresses.parse(address)[1])
    return addresses.MasterLocation(
        term=term, pid=os.getpid(), address=address, local=local if local != address else ""
    )


async def expose(service: MasterService, run: str, port: int | None) -> MetricsServer:
    """Serve metrics if a port is given. If the port is in use, a new job fails, but a running job continues."""
    exposing = MetricsServer(lambda: metrics.text(service.status(), run=run))
    try:
        if port is not None:
            service.context.log_event(
                "figures", why=f"metrics for Prometheus at http://{await exposing.start(port)}/metrics"
            )
    except errors.BadInput as error:
        if service.context.term == 1:
            raise
        log.warning("%s", error)
    return exposing


async def tidy(journal: Journal) -> None:
    """Keep the write-ahead file short. The event loop does not wait for the disk meanwhile."""
    while True:
        await asyncio.sleep(TIDY_S)
        try:
            await asyncio.to_thread(journal.tidy)
        except errors.SpringtideError as error:
            log.warning("%s", error)


def advised_by(spec: JobSpec, files: logs.RunFiles) -> AdviserSetup | None:
    """Return the setup of the job's adviser, which runs in its own thread. Return None if the job does not plan."""
    rules = spec.planning
    if rules.bounds is None:
        return None
    return AdviserSetup(
        make=lambda: advisers.make_adviser(rules, folder=str(files.root.absolute())),
        name=files.root.name,
        wall=time.time,
        show=lambda shown: planner_views.write(files.view, shown),
        keep=lambda epoch: planner_views.keep(files, epoch),
        thread=AdviserThread(),
    )


def build_service(
    record: JobRecord,
    story: events.EventLog,
    clock: Callable[[], float],
    journal: Journal | None = None,
    term: int = 1,
    saving: CheckpointStore | None = None,
    advised: AdviserSetup | None = None,
    away_s: float = AWAY_S,
) -> MasterService:
    context = MasterContext(record, story, clock, journal, term=term)
    nowhere = CheckpointStore(CheckpointRules(), pathlib.Path(), claims.RunClaim(run="", job=record.state.spec.name))
    return MasterService(context, MasterParts(context, saving or nowhere, advised), away_s=away_s)


def open_service(
    spec: JobSpec, story: events.EventLog, journal: Journal, advised: AdviserSetup | None = None
) -> MasterService:
    snapshot, kept = journal.read()
    began = time.monotonic()
    try:
        begun_with = msgspec.json.decode(journal.begun_with(msgspec.json.encode(spec)), type=JobSpec)
        record = rebuild(begun_with, snapshot, kept)
    except errors.SpringtideError:
        raise
    except Exception as error:  # a damaged entry may mean anything, and do anything to the record
        raise journal.damaged(error) from error
    # the time of the job is 0 at the start of the first master, and never decreases, even if the machine's clock does
    start = max(record.span.last_at, time.time() - journal.began)
    clock = lambda: start + time.monotonic() - began  # noqa: E731
    claim = claims.of_this_process(journal.run, spec.name)
    files, given = logs.RunFiles(story.path.parent), spec.checkpoints.folder
    folder = pathlib.Path(given) / files.root.name if given else files.checkpoints
    saving = CheckpointStore(went_on_as(begun_with.checkpoints, spec.checkpoints), folder, claim, term=journal.term)
    service = build_service(record, story, clock, journal, journal.term, saving, advised)
    if not snapshot and not kept:
        service.parts.checkpoints.resume()
        service.parts.autoscaler.begin()
    else:
        service.take_over()
        log.info("took over with %d entries in %.3f s", len(kept), time.monotonic() - began)
    return service


def went_on_as(begun: CheckpointRules, now: CheckpointRules) -> CheckpointRules:
    return dataclasses.replace(
        now,
        resume=begun.resume,
        resume_number=begun.resume_number,
        resume_run=begun.resume_run,
        numbers_after=begun.numbers_after,
        new_data=begun.new_data,
    )


def rebuild(spec: JobSpec, snapshot: bytes | None, kept: list[bytes]) -> JobRecord:
    record = JobRecord.from_bytes(snapshot) if snapshot else JobRecord(spec)
    for entry in kept:
        record.replay(entry)
    return record


def say_error(files: logs.RunFiles, term: int, error: errors.SpringtideError) -> int:
    """Publish the reason why the master could not start. If the disk is full, only the log has the error."""
    log.error("%s", error)
    location = addresses.MasterLocation(term=term, pid=os.getpid(), error=str(error), kind=type(error).__name__)
    with contextlib.suppress(OSError):
        addresses.write_master(files.master, location)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
