"""Checks a Ray client server (`ray://HOST:10001`) before Ray connects.

In: `cluster.connect`. Ray itself would try for half a minute and then report only a timeout. Out: nothing, or an error
with advice. The check uses Ray's own messages. With a version of Ray that lacks them, the check is skipped.
"""

import contextlib
from collections.abc import Iterator

from springtide import config, errors
from springtide.rpc.transport import addresses

SCHEME = "ray://"
PORT = 10001
"""Default port of the client server."""
ANSWER_S = 10.0
TOKEN = (
    "set RAY_AUTH_MODE=token and give the cluster's token by RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token "
    "(`ray get-auth-token` on the cluster prints it)"
)


PINS = "RAY_RUNTIME_ENV_TEMPORARY_REFERENCE_EXPIRATION_S"


def connected() -> bool:
    from ray.util import client

    return bool(client.ray.is_connected())


@contextlib.contextmanager
def uploading() -> Iterator[None]:
    """Disable Ray's ten-minute pin during an upload: its client server rejects that call (2.60). The steward holds the
    code.
    """
    with config.lent(PINS, "0") if connected() else contextlib.nullcontext():
        yield


def where(address: str) -> str:
    given = address.removeprefix(SCHEME)
    return addresses.join(*addresses.parse(given)) if ":" in given else f"{given}:{PORT}"


def knock(address: str) -> None:
    try:
        import grpc
        from ray._private.grpc_utils import init_grpc_channel
        from ray.core.generated import ray_client_pb2 as said
        from ray.core.generated import ray_client_pb2_grpc as stubs
    except ImportError:
        return
    channel = init_grpc_channel(where(address))
    try:
        ping = said.ClusterInfoRequest(type=said.ClusterInfoType.PING)
        stubs.RayletDriverStub(channel).ClusterInfo(ping, timeout=ANSWER_S)
    except grpc.RpcError as error:
        raise refused(address, error.code().name, error.details() or "") from None
    finally:
        channel.close()


def refused(address: str, code: str, details: str) -> errors.BadInput:
    if code == "UNAUTHENTICATED":
        return errors.BadInput(f"the Ray cluster at {address} wants a token ({details}): {TOKEN}")
    if code == "UNIMPLEMENTED":
        return errors.BadInput(
            f"at {address} listens a part of Ray that takes no clients: ray:// wants the port of the client server, "
            "10001 unless `ray start --head --ray-client-server-port` says otherwise"
        )
    return errors.BadInput(
        f"at {address} somebody listens, but not as Ray's client server ({code.lower()}: {details[:200]}). Its port is "
        "10001 unless `ray start --head --ray-client-server-port` says otherwise; a cluster with Ray's own TLS wants "
        "RAY_USE_TLS=1 and its certificates here too"
    )


def not_begun(address: str, said: str) -> errors.BadInput:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return errors.BadInput(
        f"the client server at {address} could not begin a session ({lines[-1][:300] if lines else 'no reason'}). "
        "Try again; the reason is in ray_client_server*.err among Ray's logs on the head node"
    )
