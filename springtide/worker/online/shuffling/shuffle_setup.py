"""Open a worker's shuffle unit and its connections to the other workers.

In: worker/online/ opens the unit if a job trains from a stream. Out: a `ShuffleUnit` that exchanges batches with peers
once the master has sent their addresses.
"""

import logging

from springtide import errors
from springtide.domain.data.leases import LeaseHolder
from springtide.rpc.messages.messages import WorkerWelcome
from springtide.rpc.messages.shuffling import Shufflers
from springtide.worker.link.master_link import MasterLink
from springtide.worker.online.shuffling.peers import Peers
from springtide.worker.online.shuffling.shuffle_unit import ShuffleUnit, strategy_named

log = logging.getLogger(__name__)


def open_unit(
    to_master: MasterLink, welcome: WorkerWelcome, *, strategy: str = "advanced", queue: tuple[int, int] | None = None
) -> ShuffleUnit:
    """Open the unit; `ShuffleUnit.close` disconnects it. With "none", or without a cluster, it is a plain queue."""
    chosen = strategy_named(strategy) if any(welcome.servers) else "none"
    unit = ShuffleUnit(to_master.leases.tracker, strategy=chosen, queue=queue, seed=welcome.seed * 65537 + welcome.rank)
    if chosen == "none":
        return unit
    from springtide.worker.bsp import connect  # imports torch, which a unit alone does not need

    name = str(LeaseHolder(welcome.rank, welcome.incarnation))
    try:
        host = connect.own_host(welcome)
        peers = Peers(unit, welcome.secret, name, host=host, certificates=welcome.certificates)
    except errors.PortTaken as error:
        log.warning("this worker neither gives batches to others nor takes any: %s", error)
        return unit
    unit.connect(peers)

    def heed(news: Shufflers) -> None:
        peers.follow({each.name: each.address for each in news.members})

    to_master.news.shufflers.follow(peers.address, heed)
    return unit
