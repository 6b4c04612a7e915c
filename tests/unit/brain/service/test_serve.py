"""Liveness and readiness of a brain, as a cluster probes them."""

import asyncio

from springtide.brain.service import serve


async def ask(address, path):
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: brain\r\n\r\n".encode())
    said = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return said.split(" ", 2)[1]


def test_standby_brain_is_live_but_not_ready():
    async def run():
        async with serve.health_server("127.0.0.1:0") as shown:
            assert await ask(shown.address, "/live") == "200"
            assert await ask(shown.address, "/ready") == "503"
            shown.serving = True
            assert await ask(shown.address, "/ready") == "200"
            assert await ask(shown.address, "/secret") == "404"

    asyncio.run(run())


def test_health_server_without_an_address_does_not_listen():
    async def run():
        async with serve.health_server("") as shown:
            assert shown.address == ""

    asyncio.run(run())
