"""What is refused before the server is asked: the same as what the server refuses, and in words for a terminal."""

from __future__ import annotations

import pytest

from ringfence.cli import checks
from ringfence.client.errors import Invalid
from ringfence.host.engine import say, threads
from ringfence.host.kernel.people import Scope
from ringfence.host.kernel.threads import MAX_ATTACHMENTS, MAX_MESSAGE_BYTES


def test_the_limits_are_the_servers() -> None:
    assert (checks.MESSAGE_BYTES, checks.ATTACHMENTS) == (MAX_MESSAGE_BYTES, MAX_ATTACHMENTS)
    assert (checks.KEY_CHARACTERS, checks.MAX_PAGE) == (say.MAX_KEY, threads.MAX_PAGE)
    assert checks.REASON_CHARACTERS == threads.REASON_CHARACTERS
    assert [say.check_mode(mode) for mode in checks.MODES] == list(checks.MODES)
    assert set(checks.SCOPES) == {scope.value for scope in Scope}


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("", "invalid", "the message is empty"),
        (" \n\t", "invalid", "the message is empty"),
        ("ab\udcff", "invalid", "the message is not UTF-8: byte 0xff after 2 characters"),
        ("\ud800", "invalid", "the message is not UTF-8: half of a surrogate pair after 0 characters"),
        ("a\0", "invalid", "the message has a NUL after 1 characters"),
        ("é" * 131_073, "too_large", "the message has 262146 bytes; the limit is 262144"),
    ],
)
def test_messages_that_are_refused(text: str, code: str, says: str) -> None:
    with pytest.raises(Invalid) as raised:
        checks.message(text)
    assert (raised.value.code, raised.value.message) == (code, says)
    assert raised.value.remedy


def test_what_is_right_is_taken_as_it_is() -> None:
    assert checks.message("é" * 131_072) == "é" * 131_072
    assert checks.key(None) is None and checks.key("k" * 200) == "k" * 200
    assert checks.attachments(None) == [] and len(checks.attachments(["f"] * 20)) == 20
    assert checks.seconds("--ttl", None) is None and checks.seconds("--ttl", 0.5) == 0.5
    assert checks.reason("why") == "why" and checks.one_of("--mode", "queue", checks.MODES) == "queue"


def test_what_is_wrong_is_named_with_what_is_right() -> None:
    with pytest.raises(Invalid, match="--mode 'shout' is none of queue, steer, reject") as raised:
        checks.one_of("--mode", "shout", checks.MODES)
    assert raised.value.remedy == "--mode queue or --mode steer or --mode reject"
    for key in ("", "k" * 201):
        with pytest.raises(Invalid):
            checks.key(key)
    for number in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(Invalid):
            checks.seconds("--ttl", number)
    for reason in ("", "  x  ", "x" * 501):
        with pytest.raises(Invalid):
            checks.reason(reason)
    with pytest.raises(Invalid, match="21 files are attached; the limit is 20"):
        checks.attachments(["f"] * 21)
