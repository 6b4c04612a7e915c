"""Runs the dashboard's web server on a socket: in the process of `springtide dashboard`, or as `python -m
springtide.dashboard.server` for `springtide run` (`dormant_server`)."""

import logging
import socket
import sys

import msgspec
import uvicorn

from springtide import child_guard, config
from springtide.dashboard import app
from springtide.dashboard.access import AccessRules
from springtide.dashboard.endpoints import DashboardSources
from springtide.dashboard.job_reader import JobReader
from springtide.dashboard.page_socket import ServerOrder
from springtide.launch.job_lookup import JobLocation

CLOSE_S = 1  # seconds that open live updates keep the server after it was told to end


def serve(listener: socket.socket, sources: DashboardSources, rules: AccessRules) -> None:
    """Serve until SIGINT or SIGTERM."""
    # the end of the server ends live updates, which is no error
    logging.getLogger("uvicorn.error").addFilter(lambda record: not str(record.msg).startswith("Cancel "))
    settings = uvicorn.Config(
        app.build(sources, rules),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=CLOSE_S,
    )
    uvicorn.Server(settings).run(sockets=[listener])


def main(arguments: list[str]) -> int:
    order = msgspec.json.decode(config.own_arguments(arguments)[0], type=ServerOrder)
    child_guard.die_with(order.parent)
    with socket.socket(fileno=order.descriptor) as listener:
        sources = DashboardSources(JobReader(JobLocation(folder=order.folder)), order.job)
        serve(listener, sources, AccessRules(host=listener.getsockname()[0], token=order.token))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
