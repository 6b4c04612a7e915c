"""Process of a data worker in a job: `python -m springtide.dataworker.processes.__main__`.

In: environment variables (`config`), and the job's package, which a trainer writes. Out: mini-batches for trainers
(dataworker/feed/worker.py). The process ends when the master orders it and trainers have fetched all its batches. A
data worker keeps no state, so it may die at any time.
"""

import gc
import logging
import os
import signal
import sys
import threading

import msgspec
import torch

from springtide import child_guard, config, errors
from springtide.dataworker.feed.worker import DataWorker
from springtide.dataworker.processes import job_package, package_transfer
from springtide.domain.core.roles import RoleKind
from springtide.domain.data.data_workers import stage_of
from springtide.rpc.messages import data_workers, messages
from springtide.rpc.messages.coordination import ValueFound, ValueRequest
from springtide.rpc.messages.types import MemberReport, Reply
from springtide.rpc.transport import channel
from springtide.telemetry import logs
from springtide.telemetry.host import gpus
from springtide.telemetry.host.usage import OwnUsage

log = logging.getLogger(__name__)
POLL_S = 0.1  # seconds between two checks for a request to leave


class ExitPlan:
    """Requests to end this process, either immediately or after draining."""

    def __init__(self) -> None:
        self.over, self.drain = threading.Event(), threading.Event()
        """Events: leave immediately; leave after trainers have fetched all batches."""

    def apply(self, reply: messages.HeartbeatReply) -> None:
        if reply.drain:
            self.drain.set()
        if reply.stop or reply.fenced:
            self.leave()

    def leave(self) -> None:
        self.over.set()
        self.drain.set()


def main() -> int:
    settings = config.load()
    child_guard.die_with(settings.parent)
    logs.log_to_stderr(debug=settings.debug)
    leaving = ExitPlan()
    signal.signal(signal.SIGTERM, lambda *_: leaving.leave())
    for ignored in (signal.SIGINT, signal.SIGHUP):
        # ignore signals of the terminal, because the agent decides when this process stops
        signal.signal(ignored, signal.SIG_IGN)
    try:
        serve(settings, leaving)
    except errors.SpringtideError as error:
        log.error("%s", error)
        return 1
    return 0


def serve(settings: config.Settings, leaving: ExitPlan) -> None:
    """Serve until the job is over, the master ends this process, or the master is lost."""
    secret = config.job_secret(settings)
    rank = config.own_rank(settings, RoleKind.DATA_WORKER)
    link = channel.for_member(settings, secret)
    try:
        hello = data_workers.JoinDataWorker(rank, os.getpid(), settings.incarnation, channel.BIRTH)
        welcome = link.ask(hello)
        assert isinstance(welcome, data_workers.DataWorkerWelcome)
        link.introduce(hello)
        roster = FeederRoster(OwnUsage(settings))
        link.start_heartbeat(
            welcome.spec.heartbeat_s, roster.beat, lambda reply: apply_reply(reply, leaving, roster), leaving.leave
        )
        found = await_package(link, leaving)
        if found is None:
            return
        stage = stage_of(rank, found.stages)
        if stage not in found.gpu_stages:
            # hide the GPUs, because a process that works on the CPU needs no CUDA context
            config.live_variables()[gpus.VARIABLE] = ""
        with package_transfer.at_hand(link.ask, welcome.package, found.sealed) as folder:
            pipeline = job_package.load(folder, secret=secret)
        gc.freeze()  # the data set stays in memory, so the garbage collector need not search it
        host = channel.own_host(settings, link)
        serving = DataWorker(
            pipeline,
            stage,
            secret,
            host=host,
            threads=torch.get_num_threads(),
            seed=welcome.spec.seed,
            certificates=settings.tls,
        )
        try:
            roster.follow(serving, stage, found.stages)
            log.info("serving stage %d of %d at %s", stage + 1, found.stages, serving.address)
            link.ask(data_workers.DataWorkerReady(serving.address))
            leaving.drain.wait()
            serving.drain()
            while not leaving.over.is_set() and not serving.done.wait(POLL_S):
                pass
            log.info("leaving after %d batches", serving.made)
        finally:
            serving.close()
    finally:
        link.close()


def await_package(link: channel.MasterChannel, leaving: ExitPlan) -> data_workers.Package | None:
    """Wait until a trainer has written the job's package. Return None if this process must drain before the package
    arrives.
    """
    replies: list[Reply] = []
    failures: list[errors.SpringtideError] = []

    def ask() -> None:
        try:
            replies.append(link.ask(ValueRequest(data_workers.PACKAGE_KEY)))
        except errors.SpringtideError as error:
            failures.append(error)

    asking = threading.Thread(target=ask, name="springtide-package", daemon=True)
    asking.start()
    while asking.is_alive() and not leaving.drain.is_set():
        asking.join(POLL_S)
    if failures and not leaving.drain.is_set():
        raise failures[0]
    if not replies:
        return None
    found = replies[0]
    assert isinstance(found, ValueFound)
    return msgspec.msgpack.decode(found.value, type=data_workers.Package)


class FeederRoster:
    """The job's data workers. A middle stage takes batches from data workers of the previous stage."""

    def __init__(self, usage: OwnUsage | None = None) -> None:
        self._lock, self._usage = threading.Lock(), usage
        self._known: data_workers.Feeders | None = None
        self._serving: DataWorker | None = None
        self._stage, self._stages = 0, 1
        self._attached: dict[str, str] = {}

    def beat(self) -> messages.Heartbeat:
        made = float(self._serving.made) if self._serving is not None else 0.0
        fed = self._serving.state if self._serving is not None else None
        return messages.Heartbeat(
            MemberReport(counters={"made": made}, feed=fed),
            feeders=0 if self._known is None else self._known.epoch,
            usage=None if self._usage is None else self._usage.read(),
        )

    def take(self, news: data_workers.Feeders) -> None:
        with self._lock:
            self._known = news
            self._connect()

    def follow(self, serving: DataWorker, stage: int, stages: int) -> None:
        with self._lock:
            self._serving, self._stage, self._stages = serving, stage, stages
            self._connect()

    def _connect(self) -> None:
        if self._serving is None or self._known is None or self._stage == 0:
            return
        before = {
            feed.name: feed.address
            for feed in data_workers.feeds(self._known, stage=self._stage - 1, stages=self._stages)
        }
        for name in self._attached.keys() - before.keys():
            self._serving.detach(name)
        for name in before.keys() - self._attached.keys():
            self._serving.attach(name, before[name])
        self._attached = before


def apply_reply(reply: messages.HeartbeatReply, leaving: ExitPlan, roster: FeederRoster) -> None:
    if reply.feeders is not None:
        roster.take(reply.feeders)
    leaving.apply(reply)


if __name__ == "__main__":
    sys.exit(main())
