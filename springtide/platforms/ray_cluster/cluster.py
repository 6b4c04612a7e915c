"""Connects to a Ray cluster with helpful error messages, and lists the cluster's capacity, live nodes and actors.

For a Ray client server (`ray://HOST:10001`), this module first checks the connection and reports Ray's messages.
Otherwise Ray would try for half a minute and then report only a timeout.
"""

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from springtide import config, errors
from springtide.domain.core.roles import Life
from springtide.platforms.ray_cluster import job_order
from springtide.platforms.ray_cluster.placement import Nodes
from springtide.rpc.transport import addresses

try:
    import ray
    from ray import exceptions
except ImportError as error:
    raise errors.MissingExtra("the Ray platform", "ray") from error

KNOCK_S = 10.0
AGAIN_S = 1.0
NOT_BEGUN = "Initialization failure from server"
EXCLUDES = [".git", ".venv", "venv", ".springtide", "__pycache__", "*.pyc", "build", ".mypy_cache", ".pytest_cache"]
"""Patterns of files in the working directory that are never uploaded."""

SCHEME = "ray://"
PORT = 10001
ANSWER_S = 10.0
TOKEN = (
    "set RAY_AUTH_MODE=token and give the cluster's token by RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token "
    "(`ray get-auth-token` on the cluster prints it)"
)
PINS = "RAY_RUNTIME_ENV_TEMPORARY_REFERENCE_EXPIRATION_S"


def connect(address: str = "", runtime_env: Mapping[str, Any] | None = None) -> bool:
    """Connect to the cluster; return False if the program is connected already."""
    if ray.is_initialized():
        return False
    try:
        knock(address)
        _init(address, runtime_env or {})
    except errors.UserError:
        raise
    except OSError as error:  # OSError includes ConnectionError
        raise unreachable(address, error) from None
    except (ValueError, RuntimeError, exceptions.RayError) as error:
        raise explained(address, error) from None
    return True


def _init(address: str, runtime_env: Mapping[str, Any], tries: int = 4) -> None:
    """Call `ray.init`; retry while a busy client server fails to start a session."""
    try:
        ray.init(
            address=address or "auto",
            namespace=job_order.NAMESPACE,
            runtime_env=dict(runtime_env),
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=True,
        )
    except ConnectionError as error:
        if NOT_BEGUN not in str(error):
            raise
        if tries == 1:
            raise session_refused(address, str(error)) from None
        time.sleep(AGAIN_S)
        _init(address, runtime_env, tries - 1)


def knock(address: str) -> None:
    """Check that the port accepts connections, because Ray would retry for minutes and then exit the process."""
    far = address.startswith(SCHEME)
    if far or ":" in address:
        host, port = addresses.parse(client_address(address))
        socket.create_connection((host, port), timeout=KNOCK_S).close()
    if far:
        check_client_server(address)


def unreachable(address: str, error: Exception) -> errors.UserError:
    if not address:
        return errors.BadInput(
            "no Ray cluster on this machine: start one with `ray start --head`, or give its address with "
            "--address HOST:6379 (on one of its nodes) or --address ray://HOST:10001 (from outside)"
        )
    lines = str(error).strip().splitlines()
    return errors.BadInput(
        f"no Ray cluster at {address} ({lines[0] if lines else type(error).__name__}). HOST:6379 works on a node of "
        f"the cluster, ray://HOST:10001 from outside; check that the cluster runs and that the port is open"
    )


def explained(address: str, error: Exception) -> errors.UserError:
    text = " ".join(str(error).split())
    if "ersion mismatch" in text or ("ersion" in text and "mismatch" in text):
        return errors.BadInput(f"Ray or Python here and on the cluster differ: {text[:400]}. Install the same versions")
    if "exceeds the maximum size" in text:
        return errors.BadInput(
            f"the working directory is too large to send: {text[:300]}. List unneeded files in a .rayignore "
            "file, put data elsewhere, or put the code on the nodes and leave workingDir out"
        )
    if "not connect" in text or "Connection" in text or "find any running Ray" in text:
        return unreachable(address, error)
    return errors.BadInput(f"Ray at {address or 'this machine'}: {text[:400]}")


def nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def node_lives(node: str) -> bool:
    try:
        return any(known["NodeID"] == node for known in nodes())
    except exceptions.RayError:
        return False


def head_node() -> str:
    return next((node["NodeID"] for node in nodes() if "node:__internal_head__" in node["Resources"]), "")


def private_state(look: Callable[[Any], Mapping[str, Any]]) -> dict[str, Any]:
    """Read data from Ray's private interface. Return an empty dict if Ray does not answer, or if this version of Ray
    lacks the interface.
    """
    with contextlib.suppress(exceptions.RayError, AttributeError, ImportError):
        from ray._private import state

        return dict(look(state))
    return {}


def free() -> dict[str, dict[str, float]]:
    # the public functions of Ray return only totals over all nodes
    return private_state(lambda state: state.available_resources_per_node())


def seats(job: str, homes: Collection[str]) -> Nodes:
    going = draining()
    cores = {node: has.get("CPU", 0.0) for node, has in free().items() if node not in going}
    # without a dashboard, no public function of Ray returns the nodes of actors
    actors = private_state(lambda state: state.actors(actor_state_name="ALIVE")).values()
    where = {actor["Name"]: actor["Address"]["NodeID"] for actor in actors if actor["Name"]}
    return Nodes(free=cores, homes=homes, noise=job_order.noise(job, where))


def draining() -> dict[str, int]:
    """Return the nodes that Ray will remove, each with its deadline in ms since 1970 (0: as soon as possible)."""
    # Ray has no public function that lists draining nodes
    return private_state(lambda state: state.state.get_draining_nodes())


def holders(job: str) -> dict[Life, Any]:
    found = {}
    for named in ray.util.list_named_actors(all_namespaces=True):
        life = job_order.life_of(job, named["name"]) if named["namespace"] == job_order.NAMESPACE else None
        if life is not None:
            with contextlib.suppress(ValueError):  # the actor has just ended
                found[life] = ray.get_actor(named["name"], namespace=job_order.NAMESPACE)
    return found


def find_steward(job: str) -> Any:
    with contextlib.suppress(ValueError):
        return ray.get_actor(job_order.steward_of(job), namespace=job_order.NAMESPACE)
    return None


def kill(actor: Any) -> None:
    with contextlib.suppress(exceptions.RayError, ValueError):
        ray.kill(actor, no_restart=True)


def connected() -> bool:
    from ray.util import client

    return bool(client.ray.is_connected())


@contextlib.contextmanager
def uploading() -> Iterator[None]:
    """During an upload, skip Ray's call that pins the package for ten minutes, because Ray's client server (2.60)
    rejects it."""
    with config.lent(PINS, "0") if connected() else contextlib.nullcontext():
        yield


def client_address(address: str) -> str:
    given = address.removeprefix(SCHEME)
    return addresses.join(*addresses.parse(given)) if ":" in given else f"{given}:{PORT}"


def check_client_server(address: str) -> None:
    try:
        import grpc
        from ray._private.grpc_utils import init_grpc_channel
        from ray.core.generated import ray_client_pb2 as said
        from ray.core.generated import ray_client_pb2_grpc as stubs
    except ImportError:
        return
    channel = init_grpc_channel(client_address(address))
    try:
        ping = said.ClusterInfoRequest(type=said.ClusterInfoType.PING)
        stubs.RayletDriverStub(channel).ClusterInfo(ping, timeout=ANSWER_S)
    except grpc.RpcError as error:
        raise client_refused(address, error.code().name, error.details() or "") from None
    finally:
        channel.close()


def client_refused(address: str, code: str, details: str) -> errors.BadInput:
    if code == "UNAUTHENTICATED":
        return errors.BadInput(f"the Ray cluster at {address} needs a token ({details}): {TOKEN}")
    if code == "UNIMPLEMENTED":
        return errors.BadInput(
            f"the Ray service at {address} accepts no clients: ray:// needs the port of the client server, 10001 "
            f"unless `ray start --head --ray-client-server-port` says otherwise"
        )
    return errors.BadInput(
        f"a program listens at {address}, but not Ray's client server ({code.lower()}: {details[:200]}). The client "
        f"server's port is 10001 unless `ray start --head --ray-client-server-port` says otherwise; a cluster with "
        f"Ray's own TLS needs RAY_USE_TLS=1 and its certificates here too"
    )


def session_refused(address: str, reason: str) -> errors.BadInput:
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return errors.BadInput(
        f"the client server at {address} could not begin a session ({lines[-1][:300] if lines else 'no reason'}). "
        "Try again; the reason is in ray_client_server*.err among Ray's logs on the head node"
    )
