"""Addresses that are never dialled: the attack list B4-B7, in every form that hides one."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.kernel.outward.addresses import DENIED_V4, DENIED_V6, METADATA, denied, metadata, metadata_name
from ringfence.host.kernel.outward.authority import Malformed, host, literal

PUBLIC = (
    "1.1.1.1",
    "8.8.8.8",
    "93.184.216.34",
    "140.82.121.4",
    "172.32.0.1",
    "100.128.0.1",
    "2606:4700:4700::1111",
    "2a00::1",
)
B4 = (
    "169.254.169.254",
    "169.254.170.2",
    "169.254.170.23",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fe80::a9fe:a9fe",
    "168.63.129.16",
    "100.100.100.200",
    "192.0.0.192",
)
B5 = (
    "::ffff:127.0.0.1",
    "::127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a9fe:a9fe",
    "2002:7f00:1::",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::5efe:127.0.0.1",
    "2a00::5efe:8.8.8.8",
    "2a00::200:5efe:8.8.8.8",
    "::ffff:0:127.0.0.1",
)
B6 = (
    *(
        "0.0.0.0",
        "0.1.2.3",
        "127.0.0.1",
        "127.255.255.255",
        "10.0.0.0",
        "10.255.255.255",
        "172.16.0.1",
        "172.31.255.255",
    ),
    *("192.168.0.1", "100.64.0.1", "100.127.255.255", "169.254.0.1", "192.0.0.1", "198.18.0.1", "198.19.255.255"),
    *("192.0.2.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *(
        "::",
        "::1",
        "fc00::1",
        "fdff::1",
        "fe80::1",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "100::1",
        "3fff::1",
        "4000::1",
    ),
)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_ones_are_dialled(address: str) -> None:
    assert denied(address, ()) is None
    assert not metadata(address)


@pytest.mark.parametrize("address", B4 + B5 + B6)
def test_all_the_others_are_not(address: str) -> None:
    assert denied(address, ())
    assert denied(ip_address(address), ())


@pytest.mark.parametrize("address", ["168.63.129.16", "64:ff9b::a9fe:a9fe", "::127.0.0.1"])
def test_the_standard_library_would_let_these_through(address: str) -> None:
    """The control: why the lists are ours. Others come and go with its patch releases."""
    assert ip_address(address).is_global
    assert denied(address, ())


@pytest.mark.parametrize("address", B4)
def test_metadata_in_every_form(address: str) -> None:
    assert metadata(address)
    packed = ip_address(address)
    if isinstance(packed, IPv4Address):
        for hidden in _hiding(packed):
            assert metadata(hidden), hidden


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "127.0.0.1", "192.168.1.1", "fd12::1", "::1", "64:ff9b::a00:1", "fd12::a9fe:a9fe"]
)
def test_an_internal_address_is_no_metadata_service(address: str) -> None:
    """Those an operator may open."""
    assert denied(address, ()) and not metadata(address)


@pytest.mark.parametrize(
    "text", ["", "api.test", "127.1", "0177.0.0.1", "2130706433", "fe80::1%eth0", "1.2.3.4/32", "[::1]"]
)
def test_what_is_no_address_is_not_dialled(text: str) -> None:
    assert denied(text, ()) == "no address"
    assert metadata(text)


def test_the_hosts_own_addresses() -> None:
    own = ("93.184.216.34", "2606:4700::1", "::ffff:8.8.4.4")
    assert denied("93.184.216.34", own) == denied("::ffff:93.184.216.34", own) == "an address of this host"
    assert denied("2606:4700:0::1", own) and denied("8.8.4.4", own)
    assert denied("93.184.216.35", own) is None


def test_names_of_metadata_services() -> None:
    assert metadata_name(host("Metadata.Google.Internal.")) and not metadata_name("metadata.test")


def _hiding(address: IPv4Address) -> list[IPv6Address]:
    v4 = int(address)
    return [
        IPv6Address(f"::ffff:{address}"),
        IPv6Address(f"::{address}"),
        IPv6Address(f"::ffff:0:{address}"),
        IPv6Address(f"64:ff9b::{address}"),
        IPv6Address(f"64:ff9b:1::{address}"),
        IPv6Address(int(IPv6Address("64:ff9b:1::")) | (v4 >> 16) << 64 | (v4 & 0xFFFF) << 40),
        IPv6Address(int(IPv6Address("2002::")) | v4 << 80),
        IPv6Address(int(IPv6Address("2001::")) | v4 << 64),
        IPv6Address(int(IPv6Address("2001::")) | v4 ^ 0xFFFFFFFF),
        IPv6Address(f"2a00:1:2:3::5efe:{address}"),
        IPv6Address(f"2a00:1:2:3:200:5efe:{address}"),
    ]


V4 = st.sampled_from(DENIED_V4).flatmap(
    lambda row: st.integers(int(row[0].network_address), int(row[0].broadcast_address)).map(IPv4Address)
)
V6 = st.sampled_from(DENIED_V6).flatmap(
    lambda row: st.integers(int(row[0].network_address), int(row[0].broadcast_address)).map(IPv6Address)
)


def _reached(text: str) -> bool:
    """Whether a request for this host would be dialled there."""
    try:
        address = literal(host(text))
    except Malformed:
        return False
    return address is not None and denied(address, ()) is None


@given(V4)
def test_a_denied_ipv4_address_is_reached_in_no_form(address: IPv4Address) -> None:
    a, b, c, d = address.packed
    forms = [
        str(address),
        str(int(address)),
        hex(int(address)),
        f"{a:#x}.{b:#x}.{c:#x}.{d:#x}",
        f"0{a:o}.0{b:o}.0{c:o}.0{d:o}",
        f"{a}.{b}.{c << 8 | d}",
        f"{a}.{int(address) & 0xFFFFFF}",
        *(f"[{each}]" for each in _hiding(address)),
        *(f"[{each.exploded}]" for each in _hiding(address)),
        f"[::ffff:{address}]",
    ]
    assert [form for form in forms if _reached(form)] == []


@given(V6)
def test_a_denied_ipv6_address_is_reached_in_no_form(address: IPv6Address) -> None:
    assert not any(_reached(f"[{form}]") for form in (str(address), address.exploded, str(address).upper()))


@given(st.integers(0, 2**32 - 1).map(IPv4Address))
def test_only_the_mapped_form_of_a_public_address_is_dialled(address: IPv4Address) -> None:
    mapped, *others = _hiding(address)
    assert denied(mapped, ()) == denied(address, ())
    assert all(denied(each, ()) for each in others)


@given(st.integers(0, 2**128 - 1).map(IPv6Address))
def test_nothing_outside_of_2000_is_dialled(address: IPv6Address) -> None:
    if address not in IPv6Network("2000::/3") and address.ipv4_mapped is None:
        assert denied(address, ())


def test_the_tables_are_of_the_kind_they_say() -> None:
    assert len({block for block, _ in DENIED_V4}) == len(DENIED_V4) and len({block for block, _ in DENIED_V6}) == len(
        DENIED_V6
    )
    for block in METADATA:
        assert denied(block.network_address, ()), block  # never dialled without an operator's word either
