"""What an answer is evidence of, what a file of a key must be, and what the signature is over."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.host.capabilities.keys import gate_key, secret_in, secret_of
from ringfence.host.capabilities.webhook import Place, WebhookTool, judged, shown_host, signature, state_of
from ringfence.host.kernel.capabilities import Sending
from ringfence.host.kernel.declared import Webhook
from ringfence.host.kernel.declared import url as settings_url
from ringfence.host.kernel.errors import Invalid, Unavailable
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.runs import Evidence
from tests.support.engine_rig import RealClock

DONE, NOT_DONE, UNKNOWN = Evidence.DONE, Evidence.NOT_DONE, Evidence.UNKNOWN


@pytest.mark.parametrize(
    ("status", "evidence"),
    [
        (200, DONE),
        (204, DONE),
        (100, UNKNOWN),
        (302, UNKNOWN),
        (400, NOT_DONE),
        (404, NOT_DONE),
        (408, UNKNOWN),
        (409, UNKNOWN),
        (425, UNKNOWN),
        (429, NOT_DONE),
        (500, UNKNOWN),
        (503, UNKNOWN),
    ],
)
def test_what_a_status_says(status: int, evidence: Evidence) -> None:
    assert judged(status) is evidence


@pytest.mark.parametrize(
    ("status", "answer", "evidence"),
    [
        (200, b'{"state": "done"}', DONE),
        (200, b'{"state": "not_done"}', NOT_DONE),
        (200, b'{"state": "unknown"}', UNKNOWN),
        (404, b'{"state": "not_done"}', UNKNOWN),
        (500, b'{"state": "done"}', UNKNOWN),
        (200, b'{"state": "DONE"}', UNKNOWN),
        (200, b'{"state": ["not_done"]}', UNKNOWN),
        (200, b'["not_done"]', UNKNOWN),
        (200, b'{"state": "not_d', UNKNOWN),
        (200, b"[" * 1000, UNKNOWN),
        (200, b"", UNKNOWN),
        (200, b"\xff\xfe", UNKNOWN),
    ],
)
def test_three_words_and_no_other(status: int, answer: bytes, evidence: Evidence) -> None:
    assert state_of(status, answer) is evidence


def test_the_signature() -> None:
    wanted = hmac.new(b"key", b"17.body", hashlib.sha256).hexdigest()
    assert signature(b"key", "17", b"body") == f"v1={wanted}"


def test_neither_a_path_nor_a_query_is_shown() -> None:
    assert shown_host("https://a.b:1/canary?token=x") == "https://a.b:1"
    assert shown_host("https://a.b/canary") == "https://a.b"


@pytest.mark.parametrize("host", ["1.2.3.999", "[v1.a]"])
@pytest.mark.parametrize("which", ["url", "lookup_url"])
def test_an_address_that_the_client_cannot_call_is_none(host: str, which: str) -> None:
    """The parser of the settings takes both; the client would raise at the first call."""
    addresses = {"url": "https://ok.example/", "lookup_url": "https://ok.example/look"}
    good = Webhook("pay", secret_file="/nowhere", **addresses)
    WebhookTool([Place(good, b"k" * 16)], RealClock())
    bad = replace(good, **{which: settings_url(f"https://{host}/")})
    with pytest.raises(Invalid, match=f"webhook pay: {which} is none"):
        WebhookTool([Place(bad, b"k" * 16)], RealClock())


def test_the_key_of_gates_is_made_once(tmp_path: Path) -> None:
    key = gate_key(tmp_path)
    assert (len(key), gate_key(tmp_path)) == (32, key)
    assert [(each.name, each.stat().st_mode & 0o777) for each in tmp_path.iterdir()] == [("gate.key", 0o600)]
    (tmp_path / "gate.key").chmod(0o644)
    with pytest.raises(Unavailable, match="others can read the key of gates"):
        gate_key(tmp_path)
    (tmp_path / "gate.key").chmod(0o600)
    assert gate_key(tmp_path) == key
    (tmp_path / "gate.key").write_bytes(b"short")
    with pytest.raises(Unavailable):
        gate_key(tmp_path)
    with pytest.raises(Unavailable):
        gate_key(tmp_path / "absent")


def test_files_that_hold_no_secret(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.write_text("  0123456789abcdef\n")
    good.chmod(0o640)
    assert secret_of(str(good), "w") == b"0123456789abcdef"
    short, public, folder = tmp_path / "short", tmp_path / "public", tmp_path / "folder"
    short.write_text("canary")
    short.chmod(0o600)
    public.write_text("0123456789abcdef")
    public.chmod(0o644)
    folder.mkdir(mode=0o700)
    for wrong in (short, public, folder):
        with pytest.raises(Invalid) as caught:
            secret_of(str(wrong), "w")
        assert "canary" not in f"{caught.value.message} {caught.value.remedy}"
        secret, problem = secret_in(str(wrong))
        assert secret == b"" and problem and str(tmp_path) not in problem


def test_a_file_that_is_not_there_keeps_no_server_down(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert secret_of(str(tmp_path / "absent"), "webhook pay") == b""
    assert "webhook pay" in caplog.text and "is not there" in caplog.text and "chmod" not in caplog.text


async def test_nothing_is_signed_without_a_key(tmp_path: Path) -> None:
    """The address is closed: whoever calls it is told of a connection that was refused."""
    file = tmp_path / "key"
    hook = Webhook("pay", "http://127.0.0.1:1/p", str(file), "http://127.0.0.1:1/l")
    tool = WebhookTool([Place(hook, b"")], RealClock(), secret_in)
    asked = Sending("s/run_1/1/x", RunId("run_1"), 1, {"name": "pay", "body": {}})
    need = await tool.lacks(asked.arguments)
    assert need is not None and "is not there" in need.missing and "chmod 600" not in need.mend
    sent, looked = await tool.send(asked), await tool.look_up(asked)
    assert (sent.evidence, looked.evidence) == (NOT_DONE, UNKNOWN)
    assert "no key" in str(sent.result) and "no key" in str(looked.result)
    file.write_text("0123456789abcdef")
    file.chmod(0o600)
    assert "no key" not in str((await tool.look_up(asked)).result), "the key is read as soon as it is there"
    assert "nobody was reached" in str((await tool.send(asked)).result)
    await tool.close()
