"""A killed test run leaves no container."""

import pathlib
import subprocess
import sys

import pytest

from springtide_lab.kubernetes.kubelet import containers
from tests import waiting
from tests.process.running import alive

pytestmark = pytest.mark.process

DIES = """
import asyncio, os, signal, sys
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import PODS
from springtide_lab.kubernetes.kubelet.kubelet import LocalKubelet
from springtide_lab.kubernetes.api.server import ApiServer
from tests import waiting

folder = sys.argv[1]
pod = {"name": "m", "image": "x:1", "command": ["sh", "-c", "setsid sleep 999 & sleep 999"]}

async def begin(server, kubelet):
    async with Client.open(str(server.kubeconfig)) as client:
        await client.create(PODS, PODS.body("p", spec={"containers": [pod]}))
        return (await waiting.soon(lambda: kubelet.pids("default", "p")))["m"]

with ApiServer(folder + "/api") as server, LocalKubelet(server.kubeconfig, folder + "/kubelet") as kubelet:
    print(asyncio.run(begin(server, kubelet)), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_containers_end_with_the_process_that_ran_them(tmp_path: pathlib.Path) -> None:
    if why := containers.why_not():
        pytest.skip(f"no containers here: {why}")
    root = pathlib.Path(containers.PACKAGE)
    done = subprocess.run(
        [sys.executable, "-c", DIES, str(tmp_path)], stdout=subprocess.PIPE, cwd=root, text=True, timeout=240
    )
    pid = int(done.stdout)
    waiting.until(lambda: not alive(pid), "what it started in it is of its namespace, and ends with it")
