"""What of a secret is found in an answer, however it is written and however it is cut."""

from __future__ import annotations

import base64
import json
import re
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.egress.scrub import _WINDOW, MASK, Forms, Scrubber, needles

SECRET = b'ghp_"Real/Token+with<odd>&"chars~(1)2345'


def forms(secret: bytes, around: bytes) -> dict[str, bytes]:
    text = secret.decode()
    return {
        "raw": secret,
        "percent": quote(secret, safe="").encode(),
        "percent, as urllib's quote": quote(secret).encode(),
        "percent, as encodeURIComponent": quote(secret, safe="!*'()").encode(),
        "percent, as encodeURI": quote(secret, safe=";/?:@&=+$,!*'()#").encode(),
        "percent, as urllib's quote, lower": re.sub("%..", lambda found: found.group().lower(), quote(secret)).encode(),
        "percent, every byte": "".join(f"%{byte:02x}" for byte in secret).encode(),
        "percent, every byte, upper": "".join(f"%{byte:02X}" for byte in secret).encode(),
        "JSON": json.dumps(text)[1:-1].encode(),
        "JSON with escaped slashes": json.dumps(text)[1:-1].replace("/", "\\/").encode(),
        "hex": secret.hex().encode(),
        "hex, upper": secret.hex().upper().encode(),
    }


@pytest.mark.parametrize("form", sorted(forms(SECRET, b"")))
def test_each_form_is_masked(form: str) -> None:
    text = forms(SECRET, b"")[form]
    scrubber = Scrubber(Forms.of(needles(SECRET)))
    assert scrubber.feed(b"before " + text + b" after") + scrubber.end() == b"before " + MASK * len(text) + b" after"
    assert scrubber.hits == 1


@pytest.mark.parametrize("user", [b"", b"x", b"ab", b"x-access-token"])
@pytest.mark.parametrize("after", [b"", b"\n", b"zz", b"zzz"])
def test_base64_at_every_alignment(user: bytes, after: bytes) -> None:
    """All but the characters that carry bits of what is around: nothing of the secret but those can be decoded."""
    text = base64.b64encode(user + b":" + SECRET + after)
    scrubber = Scrubber(Forms.of(needles(SECRET)))
    shown = scrubber.feed(text) + scrubber.end()
    assert scrubber.hits == 1
    assert len(shown) == len(text)
    assert shown.count(MASK) >= len(SECRET) * 8 // 6 - 2


@given(st.binary(min_size=8, max_size=40), st.binary(max_size=200), st.binary(max_size=200), st.data())
def test_however_it_is_cut(secret: bytes, before: bytes, after: bytes, data: st.DataObject) -> None:
    whole = before + secret + after
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    scrubber = Scrubber(Forms.of(needles(secret)))
    shown = b""
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        shown += scrubber.feed(whole[start:end])
    shown += scrubber.end()
    assert len(shown) == len(whole)
    assert secret not in shown


@pytest.mark.parametrize("form", [SECRET, SECRET[:7], SECRET * 2 + b"-", SECRET * 3], ids=len)
@pytest.mark.parametrize("edge", [_WINDOW, 2 * _WINDOW, 3 * _WINDOW])
def test_wherever_it_stands_in_a_long_piece(form: bytes, edge: int) -> None:
    """Long pieces are looked through by windows, of forms below and above 100 bytes. The control has a byte of it changed."""
    scrubber = Scrubber(Forms.of((form,)))
    for at in range(edge - 3 * len(form), edge + 1):
        text = bytes(at) + form + bytes(4 * _WINDOW - at - len(form))
        assert scrubber.whole(text) == text.replace(form, MASK * len(form)) != text
    assert scrubber.hits == 3 * len(form) + 1
    wrong = bytes(edge - 3) + form[:-1] + b"?" + bytes(_WINDOW)
    assert scrubber.whole(wrong) == wrong


def test_an_event_is_not_kept_back() -> None:
    scrubber = Scrubber(Forms.of(needles(SECRET)))
    assert scrubber.feed(b"data: hello\n\n") == b"data: hello\n\n"
    assert scrubber.feed(b"data: " + SECRET[:7]) == b"data: "  # only what may be its beginning
    assert scrubber.feed(b"!\n\n") == SECRET[:7] + b"!\n\n"


def test_short_forms_are_not_looked_for() -> None:
    assert needles(b"ab") == {b"ab", b"%61%62"}


def test_without_forms_nothing_is_found() -> None:
    """The control of all of the above."""
    scrubber = Scrubber(Forms.of(()))
    assert scrubber.feed(SECRET) == SECRET
