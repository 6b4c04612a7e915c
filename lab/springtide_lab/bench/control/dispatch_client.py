"""The asking side of `bench dispatch`: lease shards, call them trained, lease more, as fast as the master answers.

Options: kind, address, secret, rank, most. A round: seconds -> shards and calls a second of this process.
"""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

import line

Count = Callable[[float], tuple[int, int]]
"""Lease and complete for some seconds: shards completed, calls made."""


def springtide(options: dict[str, Any]) -> Count:
    from springtide.domain.data.leases import Progress
    from springtide.domain.data.samples import DatasetCard
    from springtide.rpc.messages import messages
    from springtide.rpc.transport import connection

    card = DatasetCard(samples=10**13, batch_size=32, shard_batches=4)
    loop = asyncio.new_event_loop()
    link = loop.run_until_complete(
        connection.connect(options["address"], bytes.fromhex(options["secret"]), within_s=30)
    )
    loop.run_until_complete(link.ask(messages.JoinWorker(options["rank"], os.getpid())))

    async def go_on(seconds: float) -> tuple[int, int]:
        done, calls = 0, 0
        words: tuple[Progress, ...] = ()
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            leased = await link.ask(messages.LeaseRequest(card, words, (), options["most"]))
            assert isinstance(leased, messages.LeaseReply), leased
            done += len(words)
            calls += 1
            words = tuple(Progress(one.shard, one.first, one.end, one.end) for one in leased.grants)
        await link.ask(messages.Heartbeat(None, words))
        return done + len(words), calls + 1

    return lambda seconds: loop.run_until_complete(go_on(seconds))


def dlrover(options: dict[str, Any]) -> Count:
    """A call to get a shard, a call to report it."""
    from dlrover.python.elastic_agent.master_client import GrpcMasterClient

    client = GrpcMasterClient(options["address"], options["rank"], "worker")
    client.report_dataset_shard_params(
        batch_size=32,
        num_epochs=1000,
        dataset_size=32 * 4 * 20_000,
        shuffle=False,
        num_minibatches_per_shard=4,
        dataset_name="dispatch",
        task_type=1,
        storage_type="table",
    )

    def go_on(seconds: float) -> tuple[int, int]:
        done = 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            got = client.get_task("dispatch")
            task = got[1] if isinstance(got, tuple) else got
            assert task.task_id >= 0, task
            client.report_task_result("dispatch", task.task_id, "")
            done += 1
        return done, 2 * done

    return go_on


def start(options: dict[str, Any]) -> line.Round:
    """Connect; a round goes on for some seconds."""
    go_on = {"springtide": springtide, "dlrover": dlrover}[options["kind"]](options)

    def measure(request: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        shards, calls = go_on(request["seconds"])
        took = time.perf_counter() - began
        return {"figure": shards / took, "calls": calls / took}

    return measure


if __name__ == "__main__":
    line.serve(start)
