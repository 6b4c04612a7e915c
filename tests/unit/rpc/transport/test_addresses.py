"""Parse and format addresses, and choose the one advertised to others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.rpc.transport import addresses


@given(st.ip_addresses().map(str), st.integers(0, 65535))
def test_address_survives_formatting(host, port):
    assert addresses.parse(addresses.join(host, port)) == (host, port)


def test_host_name_is_a_valid_address():
    assert addresses.parse("ctr-master.ctr.default.svc:7700") == ("ctr-master.ctr.default.svc", 7700)


@pytest.mark.parametrize("text", ["", "7700", ":7700", "host", "host:", "host:http", "host:70000", "host:-1"])
def test_invalid_address_is_refused_with_an_example(text):
    with pytest.raises(errors.BadInput, match=r"expected host:port, such as 10\.0\.0\.5:7700"):
        addresses.parse(text)


def test_loopback_is_reached_from_loopback():
    assert addresses.facing("127.0.0.1", 9) == "127.0.0.1"


def test_wildcard_listener_advertises_a_reachable_address():
    for everywhere in addresses.EVERYWHERE:
        assert addresses.advertised(everywhere, "") not in addresses.EVERYWHERE
    assert addresses.advertised("0.0.0.0", "ctr-master") == "ctr-master"
    assert addresses.advertised("10.0.0.5", "") == "10.0.0.5"
