"""Run a process of `bench dispatch`: a master (also of `bench master-load`), or a client that leases without a pause.

Options: role (master, client), kind (springtide, dlrover); a master also takes spec; a client takes address, secret,
rank, most. A round of a master returns its address, CPU seconds and memory. A round of a client takes seconds and
returns shards and calls per second. DLRover's processes run in an environment of their own.
"""

import asyncio
import atexit
import json
import os
import pathlib
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import line
import psutil

Count = Callable[[float], tuple[int, int]]
"""Function that leases and completes shards for some seconds, and returns the numbers of completed shards and of
calls."""


def lease_springtide(options: dict[str, Any]) -> Count:
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
            words = tuple(Progress(grant.shard, grant.first, grant.end, grant.end) for grant in leased.grants)
        await link.ask(messages.Heartbeat(None, words))
        return done + len(words), calls + 1

    return lambda seconds: loop.run_until_complete(go_on(seconds))


def lease_dlrover(options: dict[str, Any]) -> Count:
    """Return a function that makes one call to get each shard and one call to report it."""
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


def serve_springtide(options: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Start a master; return its address and secret, and its process id."""
    from springtide.rpc.messages import messages
    from springtide.rpc.transport import addresses, connection

    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "logs").mkdir()
    secret = secrets.token_hex(16)
    spec = {"name": "bench", "workers": 4, "silence_s": 1e6, "join_s": 1e6, **options.get("spec", {})}
    (folder / "spec.json").write_text(json.dumps(spec))
    command = [sys.executable, "-m", "springtide.master.main", str(folder), "127.0.0.1", "0"]
    settings = {"SPRINGTIDE_SECRET": secret, "SPRINGTIDE_INCARNATION": "1", "SPRINGTIDE_MEMBER": "master"}
    master = subprocess.Popen(command, env={**os.environ, **settings})
    atexit.register(master.kill)
    while (where := addresses.read_master(folder / "master.json")) is None:
        if master.poll() is not None:
            raise RuntimeError(f"the master ended with status {master.returncode}")

    async def serve() -> None:
        link = await connection.connect(where.address, bytes.fromhex(secret), within_s=30)
        await link.ask(messages.JoinServer(0, os.getpid()))
        await link.ask(messages.ServerReady("127.0.0.1:1"))
        await link.close()

    asyncio.run(serve())
    return {"address": where.address, "secret": secret}, master.pid


def serve_dlrover(options: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Start DLRover's local master, as its own `main` does for one node."""
    from dlrover.python.master.args import parse_master_args
    from dlrover.python.master.local_master import LocalJobMaster
    from dlrover.python.scheduler.job import LocalJobArgs

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    parse_master_args(["--job_name", "dispatch", "--platform", "local", "--port", str(port), "--node_num", "1"])
    job = LocalJobArgs("local", "default", "dispatch")
    job.initilize()
    master = LocalJobMaster(port, job)
    master.prepare()
    atexit.register(lambda: master)  # keeps the master alive until this process ends
    return {"address": f"127.0.0.1:{port}"}, os.getpid()


def start_client(options: dict[str, Any]) -> line.Round:
    go_on = {"springtide": lease_springtide, "dlrover": lease_dlrover}[options["kind"]](options)

    def measure(request: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        shards, calls = go_on(request["seconds"])
        took = time.perf_counter() - began
        return {"figure": shards / took, "calls": calls / took}

    return measure


def start_master(options: dict[str, Any]) -> line.Round:
    where, pid = {"springtide": serve_springtide, "dlrover": serve_dlrover}[options["kind"]](options)
    process = psutil.Process(pid)

    def measure(request: dict[str, Any]) -> dict[str, Any]:
        used = process.cpu_times()
        return {"figure": used.user + used.system, "memory": process.memory_info().rss, **where}

    return measure


def start(options: dict[str, Any]) -> line.Round:
    return start_master(options) if options["role"] == "master" else start_client(options)
