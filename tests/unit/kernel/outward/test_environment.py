"""The environment of a command's way out; cases 26, 46, 49, 59, 65, 70, D56, D58."""

from __future__ import annotations

from urllib.request import getproxies, proxy_bypass

import httpx2
import pytest

from ringfence.host.kernel.environment import BASE
from ringfence.host.kernel.outward.environment import BUNDLE, CA, block, certificates
from ringfence.host.kernel.outward.listeners import PROXY_PORTS

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def test_proxies_in_both_casings() -> None:
    got = block(105)
    for name in PROXIES:
        assert got[name] == got[name.lower()] == "http://127.0.0.1:105"
    assert got["NO_PROXY"] == got["no_proxy"]
    assert (got["NODE_USE_ENV_PROXY"], got["CLOUDSDK_PROXY_PORT"], got["grpc_proxy"]) == ("1", "105", got["HTTP_PROXY"])


def test_an_address_of_a_proxy_has_no_user_and_no_tls() -> None:
    addresses = {value for value in block(105).values() if "://" in value}
    assert addresses == {"http://127.0.0.1:105"}


@pytest.mark.parametrize(
    "name", ["SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO"]
)
def test_what_replaces_the_roots_has_them(name: str) -> None:
    assert block(105)[name] == BUNDLE


def test_only_what_adds_has_the_ca_alone() -> None:
    """Case 65: a variable that replaces would take away the public roots."""
    assert {name for name, value in block(105).items() if value == CA} == {"NODE_EXTRA_CA_CERTS", "DENO_CERT"}
    assert CA != BUNDLE


def test_npm_is_told_twice() -> None:
    """Case 70: NODE_EXTRA_CA_CERTS does nothing beside a cafile."""
    got = block(105)
    assert (got["npm_config_cafile"], got["NODE_EXTRA_CA_CERTS"]) == (BUNDLE, CA)


def test_clients_read_it_as_it_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 49: httpx of older releases does not start with brackets or ranges among what is asked directly."""
    for name, value in block(105).items():
        if "PROXY" in name.upper():
            monkeypatch.setenv(name, value)
    assert getproxies()["https"] == getproxies()["http"] == "http://127.0.0.1:105"
    assert proxy_bypass("127.0.0.1") and proxy_bypass("localhost") and not proxy_bypass("api.test")
    with httpx2.Client() as client:
        assert client.trust_env
    assert not {"[", "]", "/"} & set(block(105)["NO_PROXY"])


def test_without_a_port_there_are_certificates_and_no_proxy() -> None:
    assert block(None) == certificates()
    assert not [name for name in block(None) if "PROXY" in name.upper()]
    assert set(certificates()) < set(block(105))


@pytest.mark.parametrize("port", [0, 53, 99, 1022, 1023, 1024, 8080])
def test_ports_that_are_no_invocations(port: int) -> None:
    with pytest.raises(ValueError):
        block(port)


def test_it_fits_into_the_environment_of_a_command() -> None:
    got = block(PROXY_PORTS[-1])
    assert not set(got) & set(BASE)
    assert all(name and "=" not in name and "\0" not in value for name, value in got.items())
    assert sum(len(name) + len(value) + 2 for name, value in got.items()) < 4096  # it is in every command
