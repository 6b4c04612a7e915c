"""Simulate the clients of `bench master-load`: many workers in one process, each with its own connection.

Options: address, secret, workers, heartbeat_s, leases. Each simulated worker holds some leases, claims to train some
batches, reports them in its heartbeat and replaces finished leases. A round takes seconds and returns heartbeats per
second, the latency of answers, and the longest delay of the master's event loop.
"""

import asyncio
import os
import random
import resource
import time
from typing import Any

import line

from springtide.domain.data.leases import Progress
from springtide.domain.data.samples import DatasetCard
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import MemberReport, Reply, Request
from springtide.rpc.transport import connection

BATCH = 512
CARD = DatasetCard(samples=10**13, batch_size=BATCH, shard_batches=16)
BATCHES_A_BEAT = 20


class LoadMember:
    """One simulated worker."""

    def __init__(self, link: connection.RpcConnection, options: dict[str, Any], chance: random.Random) -> None:
        self.link, self.options, self.chance = link, options, chance
        self.held: dict[tuple[int, int], Progress] = {}
        self.samples = 0
        self.waits: list[float] = []

    async def ask(self, request: Request) -> Reply:
        began = time.perf_counter()
        reply = await self.link.ask(request)
        self.waits.append(time.perf_counter() - began)
        return reply

    async def fill(self) -> None:
        missing = self.options["leases"] - len(self.held)
        if missing > 0:
            words = tuple(self.held.values())
            leased = await self.ask(messages.LeaseRequest(CARD, words, (), missing))
            for grant in leased.grants if isinstance(leased, messages.LeaseReply) else ():
                self.held[grant.shard, grant.first] = Progress(grant.shard, grant.first, grant.first, grant.end)

    async def live(self, until: float) -> int:
        beats = 0
        await asyncio.sleep(self.chance.uniform(0, self.options["heartbeat_s"]))
        while time.perf_counter() < until:
            self.train()
            report = MemberReport(step=self.samples // BATCH, samples=self.samples, loss=0.5)
            await self.ask(messages.Heartbeat(report, tuple(self.held.values())))
            self.held = {key: word for key, word in self.held.items() if word.offset < word.end}
            await self.fill()
            beats += 1
            await asyncio.sleep(self.options["heartbeat_s"])
        return beats

    def train(self) -> None:
        left = BATCHES_A_BEAT * BATCH
        for key, word in list(self.held.items()):
            trained = min(left, word.end - word.offset)
            self.held[key] = word._replace(offset=word.offset + trained)
            self.samples += trained
            left -= trained
            if not left:
                return


async def join(options: dict[str, Any], rank: int) -> LoadMember:
    secret = bytes.fromhex(options["secret"])
    link = await connection.connect(options["address"], secret, within_s=60)
    await link.ask(messages.JoinWorker(rank, os.getpid()))
    member = LoadMember(link, options, random.Random(rank))
    await member.fill()
    return member


async def watch(link: connection.RpcConnection, until: float) -> float:
    """Poll the master as an agent and a status view do; return the longest lag of its event loop, in seconds."""
    longest = 0.0
    while time.perf_counter() < until:
        outlook = await link.ask(messages.AgentPoll())
        assert isinstance(outlook, messages.AgentOrders)
        longest = max(longest, outlook.status.master.loop_lag_s)
        await asyncio.sleep(0.1)
    return longest


def start(options: dict[str, Any]) -> line.Round:
    """Let all workers join; return the function that runs them for one round."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    loop = asyncio.new_event_loop()

    async def begin() -> tuple[list[LoadMember], connection.RpcConnection]:
        agent = await connection.connect(options["address"], bytes.fromhex(options["secret"]), within_s=60)
        await agent.ask(messages.JoinAgent(os.getpid()))
        members = []
        for first in range(0, options["workers"], 50):
            ranks = range(first, min(options["workers"], first + 50))
            members += await asyncio.gather(*(join(options, rank) for rank in ranks))
        return members, agent

    members, agent = loop.run_until_complete(begin())

    def measure(request: dict[str, Any]) -> dict[str, Any]:
        for member in members:
            member.waits.clear()
        until = time.perf_counter() + request["seconds"]

        async def minute() -> tuple[list[int], float]:
            beats = asyncio.gather(*(member.live(until) for member in members))
            lag_s = await watch(agent, until)
            return await beats, lag_s

        beats, lag_s = loop.run_until_complete(minute())
        waits = sorted(wait for member in members for wait in member.waits)
        return {
            "figure": sum(beats) / request["seconds"],
            "lag_s": lag_s,
            "p50_s": waits[len(waits) // 2],
            "p99_s": waits[len(waits) * 99 // 100],
        }

    return measure
