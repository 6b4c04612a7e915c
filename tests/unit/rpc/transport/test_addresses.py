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


def test_ports_end_at_65535():
    assert addresses.parse("host:65535") == ("host", 65535)
    with pytest.raises(errors.BadInput, match="expected host:port"):
        addresses.parse("host:65536")


def test_only_an_ipv6_host_has_brackets():
    assert addresses.join("10.0.0.5", 7700) == "10.0.0.5:7700"
    assert addresses.join("::1", 7700) == "[::1]:7700"


def test_wildcard_listener_advertises_the_interface_that_faces_other_hosts(monkeypatch):
    monkeypatch.setattr(addresses, "facing", lambda host, port: "10.0.0.7")
    assert addresses.advertised("0.0.0.0", "") == "10.0.0.7"


def test_location_of_a_master_is_read_as_it_was_written(tmp_path):
    path, where = tmp_path / "master.json", addresses.MasterLocation(term=2, pid=7, address="host:1")
    assert addresses.read_master(path) is None
    addresses.write_master(path, where)
    assert addresses.read_master(path) == where


def test_damaged_master_file_is_named(tmp_path):
    path = tmp_path / "master.json"
    path.write_text('{"term": "two"}')
    with pytest.raises(errors.BadInput, match=r"master\.json does not say where a master is: .*the file is damaged"):
        addresses.read_master(path)
