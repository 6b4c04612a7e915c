"""The serving side of `bench dispatch` and `bench master-load`: a master. Options: kind, spec. A round: its figures.

Ours is the process that every job has, journal included, with a server that has only joined. DLRover's is its local
master, in this process (which has its environment).
"""

import atexit
import json
import os
import pathlib
import secrets
import socket
import subprocess
import sys
import tempfile
from typing import Any

import line


def springtide(options: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Start a master; where it is, and its process id."""
    import asyncio

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


def dlrover(options: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Its local master, as its own `main` starts it for one node."""
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
    return {"address": f"127.0.0.1:{port}", "keep": master}, os.getpid()


def cpu_s(pid: int) -> float:
    """Processor seconds of a process so far."""
    parts = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> int:
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def start(options: dict[str, Any]) -> line.Round:
    where, pid = {"springtide": springtide, "dlrover": dlrover}[options["kind"]](options)
    told = {name: value for name, value in where.items() if name != "keep"}
    keep = where  # a master lives as long as this process

    def measure(request: dict[str, Any]) -> dict[str, Any]:
        return {"figure": cpu_s(pid), "memory": memory(pid), **told, "kept": len(keep)}

    return measure


if __name__ == "__main__":
    line.serve(start)
