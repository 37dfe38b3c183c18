"""Ways out as an operator writes them in the file of settings: one line each. Pure.

    rules      allow HOST | deny HOST | ask HOST, then METHOD[,METHOD], :PORT and /PATH in any order;
               or preset NAME[:HOST]
    pins       HOST[:PORT]=ADDRESS[:PORT]
    internal   HOST=RANGE: names of that pattern may lead to addresses of that private range

Must never accept what checking.py does not.
"""

from __future__ import annotations

import ipaddress
from dataclasses import replace

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward import addresses, authority
from ringfence.host.kernel.outward.authority import HTTP, HTTPS
from ringfence.host.kernel.outward.checking import check_rule
from ringfence.host.kernel.outward.patterns import host_pattern
from ringfence.host.kernel.outward.presets import preset
from ringfence.host.kernel.outward.rules import EgressRule, Layer, Verdict

Pinned = tuple[str, int, str, int]
"""host, port, address, its port."""


def rules_of(line: str, number: int) -> tuple[EgressRule, ...]:
    """Of the installation; ids `file:NUMBER`. Invalid."""
    words = line.split()
    if len(words) == 2 and words[0] == "preset":
        return preset(words[1], Layer.INSTALLATION)
    if len(words) < 2 or words[0] not in tuple(Verdict):
        raise Invalid(
            f"{line[:200]!a} is no rule", remedy="write `allow HOST`, `deny HOST`, `ask HOST` or `preset NAME`"
        )
    methods: frozenset[str] = frozenset()
    ports: list[int] = []
    paths: list[str] = []
    for word in words[2:]:
        if word.startswith("/"):
            paths.append(word)
        elif word.startswith(":") and word[1:].isdecimal():
            ports.append(int(word[1:]))
        else:
            methods |= frozenset(word.split(","))
    verdict = Verdict(words[0])
    every = () if verdict is Verdict.DENY else (HTTPS,)
    draft = EgressRule(
        f"file:{number}",
        verdict,
        words[1],
        tuple(ports) or every,
        plain=HTTP in ports and verdict is not Verdict.DENY,
        methods=methods,
        paths=tuple(paths),
        layer=Layer.INSTALLATION,
    )
    return (replace(check_rule(draft), layer=Layer.INSTALLATION),)


def pin_of(text: str) -> Pinned:
    """Invalid. A metadata address is never one, nor one that no server has (0.0.0.0, multicast)."""
    name, _, place = text.partition("=")
    try:
        host, port = authority.authority(name, HTTPS)
        to, to_port = authority.authority(place, port)
        address = ipaddress.ip_address(to)
    except ValueError:
        raise _strange(text) from None
    except Invalid:
        raise _strange(text) from None
    if authority.literal(host) is not None or addresses.metadata_name(host):
        raise _strange(text)
    if addresses.metadata(address) or addresses.nowhere(address):
        raise _strange(text)
    return host, port, str(address), to_port


def internal_of(text: str) -> tuple[str, str]:
    """(pattern of hosts, range). Invalid: also a range that is not private, or of metadata services: whoever answers
    for such a name would choose the address."""
    name, _, block = text.partition("=")
    try:
        pattern, network = host_pattern(name), ipaddress.ip_network(block)
    except (Invalid, ValueError):
        raise Invalid(f"{text[:200]!a} is no HOST=RANGE", remedy="write it as *.corp.example=10.1.0.0/16") from None
    if not pattern.names:
        raise Invalid(f"{text[:200]!a} names no host", remedy="write it as *.corp.example=10.1.0.0/16")
    if (why := addresses.unopenable(network)) is not None:
        raise Invalid(
            f"{text[:200]!a} opens addresses that are {why}",
            remedy=f"name a range within {', '.join(map(str, addresses.INSIDE))}; a single address is a pin",
        )
    return str(pattern), str(network)


def place_of(text: str, port: int) -> tuple[str, int]:
    """ADDRESS or ADDRESS:PORT. Invalid."""
    try:
        bare = ipaddress.ip_address(text)
    except ValueError:
        try:
            host, found = authority.authority(text, port)
            return str(ipaddress.ip_address(host)), found
        except (Invalid, ValueError):
            raise Invalid(
                f"{text[:200]!a} is no address", remedy="write it as 192.0.2.1:53 or [2001:db8::1]:53"
            ) from None
    return str(bare), port


def _strange(text: str) -> Invalid:
    return Invalid(
        f"{text[:200]!a} is no pin", remedy="write it as HOST[:PORT]=ADDRESS[:PORT], metadata services left out"
    )
