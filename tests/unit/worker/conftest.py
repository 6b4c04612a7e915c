"""Servers in this process, on loopback, and a link that leads a worker to them."""

import dataclasses

import msgspec
import numpy as np
import pytest

from springtide import _native, config
from springtide.domain.core.roles import Placement
from springtide.worker.job import Job
from springtide.worker.link.master_link import LocalMaster, local_link

SLOTS = 64
SECRET = b"a secret of this test"


class ServedMaster(LocalMaster):
    """One worker, alone, but for servers that hold its tables."""

    def __init__(self, settings, addresses, sync):
        super().__init__(settings)
        self.addresses, self.sync = addresses, sync

    def welcome(self):
        owners = tuple(slot % len(self.addresses) for slot in range(SLOTS))
        welcome = super().welcome()
        return msgspec.structs.replace(
            welcome,
            spec=dataclasses.replace(welcome.spec, slots=SLOTS, sync=self.sync),
            servers=tuple(self.addresses),
            placement=Placement(epoch=1, servers=len(self.addresses), server_of_slot=owners),
            secret=SECRET,
        )


@pytest.fixture
def served_job():
    """`served_job(servers=2, sync="bsp")` is a job with that many servers, which end with the test.

    `stores` are the servers' tables, and `pushes()` says how many pushes each server has had.
    """
    running = []

    def start(servers=1, sync="async", **settings):
        loaded = config.load(settings, environ={})
        addresses, stores, servers_here = [], [], []
        owners = np.array([slot % servers for slot in range(SLOTS)], dtype=np.uint16)
        for index in range(servers):
            options = _native.ServerOptions()
            options.secret, options.index, options.workers = SECRET, index, 1
            stores.append(_native.Store(slots=SLOTS, seed=loaded.seed))
            server = _native.Server(stores[-1], options)
            server.set_placement(1, owners)
            host, port = server.start()
            addresses.append(f"{host}:{port}")
            running.append(server)
            servers_here.append(server)
        job = Job(loaded, local_link(loaded, ServedMaster(loaded, addresses, sync)))
        job.stores = stores
        job.pushes = lambda: [int(server.stats()["pushes"]) for server in servers_here]
        return job

    yield start
    while running:
        running.pop().stop(1.0)
