"""Ways out as an operator writes them."""

from __future__ import annotations

import pytest

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward import worded
from ringfence.host.kernel.outward.rules import Layer, Verdict


def test_a_line_is_a_rule_of_the_installation() -> None:
    [rule] = worded.rules_of("allow API.test GET,HEAD :443 :8443 /v1/**", 3)
    assert (rule.id, rule.answer, rule.host, rule.layer) == ("file:3", Verdict.ALLOW, "api.test", Layer.INSTALLATION)
    assert (rule.methods, rule.ports, rule.paths) == (frozenset({"GET", "HEAD"}), (443, 8443), ("/v1/**",))
    [deny] = worded.rules_of("deny *", 1)
    assert deny.ports == () and deny.answer is Verdict.DENY
    [plain] = worded.rules_of("ask deb.test :80", 1)
    assert plain.plain and plain.ports == (80,)
    assert {each.layer for each in worded.rules_of("preset pypi", 1)} == {Layer.INSTALLATION}


@pytest.mark.parametrize("line", ["", "allow", "permit api.test", "allow api.test get", "preset nothing", "allow a..b"])
def test_what_is_no_rule_says_so(line: str) -> None:
    with pytest.raises(Invalid) as raised:
        worded.rules_of(line, 1)
    assert raised.value.remedy


def test_pins_ranges_and_places() -> None:
    assert worded.pin_of("api.test=127.0.0.1:8443") == ("api.test", 443, "127.0.0.1", 8443)
    assert worded.pin_of("api.test:8443=[2001:db8::1]") == ("api.test", 8443, "2001:db8::1", 8443)
    assert worded.internal_of("*.corp.test=10.0.0.0/8") == ("*.corp.test", "10.0.0.0/8")
    assert worded.place_of("192.0.2.1", 53) == ("192.0.2.1", 53)
    assert worded.place_of("2001:db8::1", 53) == ("2001:db8::1", 53)
    assert worded.place_of("[2001:db8::1]:5353", 53) == ("2001:db8::1", 5353)


@pytest.mark.parametrize(
    "text",
    [
        "api.test",
        "api.test=0.0.0.0",
        "api.test=[::]",
        "api.test=0.1.2.3",
        "api.test=[ff02::1]",
        "api.test=224.0.0.1",
        "api.test=name.test",
        "192.0.2.1=192.0.2.2",
        "api.test=169.254.169.254",
        "=1.2.3.4",
        "a=",
        "",
    ],
)
def test_what_is_no_pin_is_refused(text: str) -> None:
    """A metadata service is never one."""
    with pytest.raises(Invalid):
        worded.pin_of(text)


def test_a_mapped_pin_is_the_address_in_it() -> None:
    """So that `--profile production` sees that it is loopback."""
    assert worded.pin_of("api.test=[::ffff:127.0.0.1]:8443") == ("api.test", 443, "127.0.0.1", 8443)


@pytest.mark.parametrize(
    "block",
    [
        *("0.0.0.0/0", "::/0", "127.0.0.0/8", "127.0.0.1/32", "0.0.0.0/8", "::/127", "::1/128", "169.254.0.0/16"),
        *("224.0.0.0/4", "ff00::/8", "10.0.0.0/7", "172.0.0.0/8", "100.100.100.200/32", "fd00:ec2::/32", "fc00::/6"),
        *("93.184.216.0/24", "2000::/3", "::ffff:10.0.0.0/104", "64:ff9b::/96", "fe80::/10"),
    ],
)
def test_only_private_ranges_are_opened(block: str) -> None:
    """Whoever answers for a name below it chooses the address: this host's own, a metadata service. The controls: private ones."""
    with pytest.raises(Invalid) as raised:
        worded.internal_of(f"*.corp.test={block}")
    assert raised.value.remedy
    for private in ("10.0.0.0/8", "192.168.3.0/24", "172.16.0.0/12", "100.64.0.0/10", "fd00::/8", "10.1.2.3/32"):
        assert worded.internal_of(f"*.corp.test={private}") == ("*.corp.test", private)


@pytest.mark.parametrize("text", ["*=10.0.0.0/8", "10.0.0.0/8=10.0.0.0/8", "a.test=10.0.0.1/8", "a.test"])
def test_what_is_no_range_of_a_name_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        worded.internal_of(text)
