"""Pins, the operator's inside, and what nothing opens."""

from __future__ import annotations

import pytest

from ringfence.host.egress import roots
from ringfence.host.egress.configuration import Pin
from ringfence.host.egress.reach import Reach
from tests.support.egress_outside import Ca, configuration

CA = Ca("user")
PUBLIC = "93.184.216.34"


def reach(**fields: object) -> Reach:
    return Reach(configuration(CA, CA.pem, **fields))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254", "168.63.129.16",
        "192.0.0.192", "100.100.100.200", "0.0.0.0", "198.18.0.5", "224.0.0.1", "255.255.255.255", "::1", "::",
        "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2001::1",
        "fd00:ec2::254", "fe80::1", "fec0::1", "fe80::5efe:10.0.0.1", "ff02::1", "2001:db8::1", "100::1", "198.51.100.7",
    ],
)  # fmt: skip
def test_a_name_that_leads_there_is_not_dialled(address: str) -> None:
    """B3 to B6. The control: the public one alone is."""
    assert reach().refused("api.test", [PUBLIC, address]) is not None
    assert reach().refused("api.test", [PUBLIC, "2606:2800:220:1::1"]) is None


def test_an_address_of_this_host_is_not_dialled() -> None:
    """B7: neither public ones nor, by an opened range, inside ones."""
    assert reach(own_addresses=(PUBLIC,)).refused("api.test", [PUBLIC]) is not None
    opened = reach(own_addresses=("10.0.0.5",), internal=(("git.corp", "10.0.0.0/8"),))
    assert opened.refused("git.corp", ["10.0.0.5"]) is not None
    assert opened.refused("git.corp", ["10.0.0.6"]) is None


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.0.0.2", "127.255.0.9", "0.0.0.0", "0.0.0.1", "::", "::1", "::ffff:127.0.0.3"]
)
def test_no_range_opens_what_is_every_hosts_own(address: str) -> None:
    """All of loopback is this host, and so is what connects there. The control: without what a server says of itself it would be."""
    everything = (("**.corp.test", "0.0.0.0/0"), ("**.corp.test", "::/0"))
    own = roots.own_addresses()
    assert reach(own_addresses=own, internal=everything).refused("a.corp.test", [address]) == "an address of this host"
    assert reach(own_addresses=own, internal=everything).refused("a.corp.test", ["10.99.98.97"]) is None
    assert reach(internal=everything).refused("a.corp.test", [address]) is None


def test_what_the_operator_opened_is_open_for_those_names_alone() -> None:
    opened = reach(internal=(("**.corp.test", "10.20.0.0/16"),))
    assert opened.refused("git.corp.test", ["10.20.1.1"]) is None
    assert opened.refused("git.corp.test", ["10.21.1.1"]) is not None
    assert opened.refused("git.corp.test", ["10.20.1.1", "127.0.0.1"]) is not None
    assert opened.refused("evil.test", ["10.20.1.1"]) is not None


def test_an_inside_address_of_its_own_is_open_by_an_address_alone() -> None:
    by_name, by_address = reach(internal=(("*", "10.0.0.0/8"),)), reach(internal=(("10.2.0.0/16", "10.0.0.0/8"),))
    assert by_name.refused("10.2.0.1", ["10.2.0.1"]) is not None
    assert by_address.refused("10.2.0.1", ["10.2.0.1"]) is None
    assert by_address.refused("10.3.0.1", ["10.3.0.1"]) is not None


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"]
)
def test_nothing_opens_a_metadata_service(address: str) -> None:
    """B4."""
    opened = reach(internal=(("*", "0.0.0.0/0"), ("*", "::/0")))
    assert opened.refused("api.test", [address]) == "a metadata service"


def test_pins_are_of_one_host_and_port() -> None:
    pinned = reach(pins=(Pin("api.test", 443, "127.0.0.1", 8443),))
    assert pinned.pinned("api.test", 443) == ("127.0.0.1", 8443)
    assert pinned.pinned("api.test", 80) is None
    assert pinned.pinned("a.api.test", 443) is None


@pytest.mark.parametrize("internal", [("git.corp", "10.0.0.1/8"), ("git.corp", "all"), ("*x", "10.0.0.0/8")])
def test_what_is_no_range_is_refused(internal: tuple[str, str]) -> None:
    with pytest.raises(Exception, match=r"host bits|does not appear|star|host"):
        reach(internal=(internal,))
