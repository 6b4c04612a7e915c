"""Connects to the servers that hold the tables, and finds the address on which this worker listens.

In: the master's WorkerWelcome. Out: a TableClient, the worker's address, and a function that reads the client's
timings.
"""

import time
from typing import Any

import torch

from springtide import config, errors
from springtide.embedding.lookup.table_client import BeforeRead, Behind, TableClient
from springtide.rpc.messages.messages import WorkerWelcome
from springtide.rpc.transport import addresses
from springtide.worker.link import master_link
from springtide.worker.link.progress import ClientTime

NANO = 1e-9
ATTEMPT_S = 5.0  # seconds per attempt to connect; short, because a lost server may return at another address


def to_tables(
    to_master: master_link.MasterLink, settings: config.Settings, *, behind: Behind | None, before_read: BeforeRead
) -> TableClient:
    """Connect to the job's tables. The tables stay connected even if servers return at new addresses. Without servers,
    the tables are in this process. `behind` wraps the tables on servers in a row cache.
    """
    welcome, deadline = to_master.join(), time.monotonic() + settings.connect_timeout_s
    if not welcome.servers:
        spec, threads = welcome.spec, torch.get_num_threads()
        return TableClient.local(
            slots=spec.slots, seed=spec.seed, threads=threads, whole_table_bytes=settings.whole_table_bytes
        )
    client = {
        "behind": behind,
        "before_read": before_read,
        "loads": False,  # a separate call assigns the initial values, once per job
        "whole_table_bytes": settings.whole_table_bytes,
    }
    while True:
        try:
            return _connected(welcome, settings, max(0.1, min(ATTEMPT_S, deadline - time.monotonic())), client)
        except errors.ServerUnreachable:
            before, welcome = welcome, to_master.join()
            if welcome.lives == before.lives and time.monotonic() > deadline:
                raise
            if welcome.lives != before.lives:
                deadline = time.monotonic() + settings.connect_timeout_s


def _connected(
    welcome: WorkerWelcome, settings: config.Settings, timeout_s: float, client: dict[str, Any]
) -> TableClient:
    nowhere = ("", 0)  # address to use for a server that has left or is lost
    return TableClient.connect(
        [addresses.parse(address) if address else nowhere for address in welcome.servers],
        secret=welcome.secret,
        placement=welcome.placement.server_of_slot,
        threads=torch.get_num_threads(),
        certificates=welcome.certificates,
        client=client,
        epoch=welcome.placement.epoch,
        rank=welcome.rank,
        incarnation=welcome.incarnation,
        generation=welcome.generation,
        lives=list(welcome.lives),
        connect_timeout_s=timeout_s,
        request_timeout_s=settings.request_timeout_s,
        reconnect_s=settings.reconnect_s,
        recovery_s=settings.recovery_s,
        shared_memory=settings.shared_memory,
    )


def client_time(client: TableClient) -> ClientTime | None:
    """Return the time for which servers were busy and the time for which this worker waited. Return None if tables are
    in this process."""
    backend: Any = client.tables
    if not hasattr(backend, "stats"):
        return None
    share, stats = NANO / client.servers, backend.stats()
    return ClientTime(
        stats["lookup_ns"] * share, stats["update_ns"] * share, stats["sync_ns"] * share, stats["wait_ns"] * NANO
    )


def own_host(welcome: WorkerWelcome) -> str:
    """Return the host on which this worker listens: the link's host if it has one, or else the local address of the
    connection to the servers.
    """
    return welcome.host or addresses.facing(*addresses.parse(next(address for address in welcome.servers if address)))
