"""Where the server is, from what somebody wrote: an error of ours for each thing that cannot be meant."""

from __future__ import annotations

import pytest

from ringfence.client import address, errors
from ringfence.client.address import Address


@pytest.mark.parametrize(
    "url",
    ["", "foo", "ftp://x", "http://", "http://[::1", "http://x:99999", "http://x:y", "http://x:0", "http://a b", "http://x\n",
     "http://é"],
)  # fmt: skip
def test_no_address(url: str) -> None:
    with pytest.raises(errors.Invalid, match="no address"):
        Address(url=url)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8377", "https://agents.example/", "http://[::1]:8377", "http://x:"])
def test_an_address(url: str) -> None:
    assert Address(url=url).base == url.rstrip("/")


@pytest.mark.parametrize("token", ["a\nb", "é", "a\x00"])
def test_no_token(token: str) -> None:
    with pytest.raises(errors.Invalid, match="token") as raised:
        Address(url="http://127.0.0.1:8377", token=token)
    assert token not in str(raised.value)


def test_the_same_state_as_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative XDG_DATA_HOME is ignored on both sides."""
    for name in ("RINGFENCE_URL", "RINGFENCE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert address.from_environment().socket == "/home/ann/.local/share/ringfence/run/api.sock"
