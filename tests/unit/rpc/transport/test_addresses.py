"""Addresses as they are written down, and which of this host's own is told to others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.rpc.transport import addresses


@given(st.ip_addresses().map(str), st.integers(0, 65535))
def test_an_address_is_read_back_as_it_was_written(host, port):
    assert addresses.parse(addresses.join(host, port)) == (host, port)


def test_a_name_is_an_address_too():
    assert addresses.parse("ctr-master.ctr.default.svc:7700") == ("ctr-master.ctr.default.svc", 7700)


@pytest.mark.parametrize("text", ["", "7700", ":7700", "host", "host:", "host:http", "host:70000", "host:-1"])
def test_what_is_no_address_is_refused_with_an_example(text):
    with pytest.raises(errors.BadInput, match=r"expected host:port, such as 10\.0\.0\.5:7700"):
        addresses.parse(text)


def test_the_loopback_is_reached_by_the_loopback():
    assert addresses.facing("127.0.0.1", 9) == "127.0.0.1"


def test_who_listens_everywhere_tells_an_address_that_can_be_called():
    for everywhere in addresses.EVERYWHERE:
        assert addresses.advertised(everywhere, "") not in addresses.EVERYWHERE
    assert addresses.advertised("0.0.0.0", "ctr-master") == "ctr-master"
    assert addresses.advertised("10.0.0.5", "") == "10.0.0.5"
