"""A Ray cluster that refuses a connection from outside: immediate error with advice."""

import pytest

pytest.importorskip("ray")

from springtide import config
from springtide.platforms.ray_cluster import cluster


@pytest.mark.parametrize(
    ("address", "where"),
    [("ray://head:10001", "head:10001"), ("ray://head", "head:10001"), ("ray://[::1]:7", "[::1]:7"), ("a:1", "a:1")],
)
def test_ray_client_address_gets_its_default_port(address, where):
    assert cluster.client_address(address) == where


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("UNAUTHENTICATED", ["needs a token", "RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN"]),
        ("UNIMPLEMENTED", ["accepts no clients", "--ray-client-server-port"]),
        ("UNAVAILABLE", ["a program listens", "unavailable: closed", "RAY_USE_TLS"]),
    ],
)
def test_each_ray_refusal_gives_advice(code, words):
    said = str(cluster.client_refused("ray://head:10001", code, "closed"))
    assert all(word in said for word in ["ray://head:10001", *words])


def test_failed_ray_session_reports_its_last_error():
    said = "Initialization failure from server:\nTraceback:\n  File x\nRuntimeError: no ports are left\n"
    assert "(RuntimeError: no ports are left)" in str(cluster.session_refused("ray://head:10001", said))


def test_temporarily_set_variable_is_restored(monkeypatch):
    monkeypatch.setenv("LENT_A", "before")
    monkeypatch.delenv("LENT_B", raising=False)
    with config.lent("LENT_A", "1"), config.lent("LENT_B", "2"):
        assert (config.variable("LENT_A"), config.variable("LENT_B")) == ("1", "2")
    assert (config.variable("LENT_A"), config.variable("LENT_B")) == ("before", "")
