"""A bsp group of several ranks in one process, a thread each, with real servers and a real gloo between them.

In: what each rank does with its `Job`. Out: what each has returned, by rank; the first error of any of them.
"""

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np

from springtide import _native, config
from springtide.domain.core.roles import Placement
from springtide.domain.data.data_workers import FeedRules
from springtide.domain.model import cache_rules
from springtide.rpc.messages.coordination import GroupReply, MeetReply
from springtide.rpc.messages.data_workers import TrainedWithout
from springtide.rpc.messages.messages import Ok
from springtide.worker.job import Job
from springtide.worker.link.master_link import LocalMaster, local_link

SLOTS = 64
SECRET = b"a secret of this test"
UNFED = FeedRules(workers=0)


class Meeting:
    """Where the ranks of a group wait for one another."""

    def __init__(self, workers):
        self.workers = workers
        self.barrier = threading.Barrier(workers)
        self.given, self.more = {}, threading.Condition()


class RankMaster(LocalMaster):
    """One rank's master link: it leases every shard and forms a group with the others."""

    def __init__(self, settings, rank, meeting, addresses, rules, feeding):
        super().__init__(settings)
        self.rank, self.meeting, self.addresses, self.rules = rank, meeting, addresses, rules
        self.feeding, self.left_out = feeding, []

    def welcome(self):
        owners = tuple(slot % len(self.addresses) for slot in range(SLOTS))
        placement = Placement(epoch=1, servers=len(self.addresses), server_of_slot=owners)
        welcome = super().welcome()
        spec = dataclasses.replace(
            welcome.spec,
            workers=self.meeting.workers,
            slots=SLOTS,
            sync="bsp",
            cache=self.rules,
            feeding=self.feeding,
        )
        return msgspec.structs.replace(
            welcome,
            spec=spec,
            rank=self.rank,
            servers=tuple(self.addresses),
            placement=placement,
            secret=SECRET,
        )

    def ask(self, request):
        if isinstance(request, TrainedWithout):
            self.left_out.append(request.left_out)
            return Ok()
        return super().ask(request)

    def form(self, asked):
        self.meeting.barrier.wait(60)
        ranks = tuple(range(self.meeting.workers))
        return GroupReply(asked.generation + 1, ranks, 0, first=asked.fresh, over=asked.resting)

    def meet(self, asked):
        with self.meeting.more:
            given = self.meeting.given.setdefault(asked.generation, {})
            given.update(asked.given)
            self.meeting.more.notify_all()
            assert self.meeting.more.wait_for(lambda: given.keys() >= set(asked.wanted), 60)
            return MeetReply(dict(given))


class Group:
    """`Group(workers=2, servers=2).run(work)` calls work(job) in every rank; `stores` are the servers'."""

    def __init__(self, workers, servers=1, *, rules=cache_rules.OFF, feeding=UNFED, **settings):
        self.rules, self.feeding = rules, feeding
        self.settings = config.load({"report_every_s": 60.0, **settings}, environ={})
        self.workers, self.stores, self._servers, self._addresses = workers, [], [], []
        owners = np.array([slot % servers for slot in range(SLOTS)], dtype=np.uint16)
        for index in range(servers):
            options = _native.ServerOptions()
            options.secret, options.index, options.workers = SECRET, index, workers
            self.stores.append(_native.Store(slots=SLOTS, seed=self.settings.seed))
            server = _native.Server(self.stores[-1], options)
            server.set_placement(1, owners)
            host, port = server.start()
            self._addresses.append(f"{host}:{port}")
            self._servers.append(server)

    def run(self, work):
        """Results of `work(job)` by rank."""
        meeting = Meeting(self.workers)
        self.masters = [
            RankMaster(self.settings, rank, meeting, self._addresses, self.rules, self.feeding)
            for rank in range(self.workers)
        ]
        jobs = [Job(self.settings, local_link(self.settings, master)) for master in self.masters]

        def one(job):
            try:
                return work(job)
            except BaseException:
                meeting.barrier.abort()
                raise

        with ThreadPoolExecutor(self.workers) as threads:
            return list(threads.map(one, jobs))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in self._servers:
            server.stop(1.0)
