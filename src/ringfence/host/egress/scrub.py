"""Takes the secrets of one request out of its response, in every form that `needles` knows. Pure.

Same length in, same length out, so that no framing changes. A form that spans chunks is found: what may be the beginning of
one is kept back, and nothing else, so that an event stream is not late. Forms that a server transforms further (reversed,
hashed, compressed) pass: that limit is in the documents.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote, quote_plus

from ringfence.host.kernel.outward.secret import Secret

MASK = b"*"
_ESCAPE = re.compile(rb"%[0-9A-F]{2}")
# Nothing but letters, digits and -._~ ; as urllib's quote; as encodeURIComponent and encodeURI of ECMA-262, section 19.2.6.
_LEFT = ("", "/", "!*'()", ";/?:@&=+$,!*'()#")
_LONG, _WINDOW = 100, 29_999  # bytes of a form, and of a text, from where on the other algorithm is taken
_SHORTEST = 6  # a shorter form would be found by chance: base64 of six characters is 1 in 7 * 10^10


def needles(secret: bytes) -> frozenset[bytes]:
    """Raw, percent, JSON, HTML, hex, and base64 at the three alignments: whatever the bytes around it were, the Basic pair
    of any user included."""
    text = secret.decode("latin-1")
    percent = "".join(f"%{byte:02x}" for byte in secret)
    quoted = json.dumps(secret.decode("utf-8", "replace"))[1:-1]
    found = {
        secret,
        quote_plus(secret).encode(),
        *_escaped(secret),
        percent.encode(),
        percent.upper().encode(),
        secret.hex().encode(),
        secret.hex().upper().encode(),
        quoted.encode(),
        quoted.replace("/", "\\/").encode(),
        html.escape(text).encode("latin-1"),
        *_base64(secret),
    }
    return frozenset(form for form in found if len(form) >= _SHORTEST or form == secret)


def _escaped(secret: bytes) -> Iterable[bytes]:
    """As the usual libraries do, each of which leaves other characters as they are."""
    for safe in _LEFT:
        text = quote(secret, safe=safe).encode()
        yield text
        yield _ESCAPE.sub(lambda found: found.group().lower(), text)


def _base64(secret: bytes) -> Iterable[bytes]:
    """After 0, 1 or 2 bytes of something else: without the characters that share bits with what is around."""
    for before in range(3):
        lead = -(-before * 8 // 6)  # characters with a bit of what comes before, rounded up
        whole = (before + len(secret)) * 8 // 6  # characters before the first with a bit of what follows
        text = base64.b64encode(bytes(before) + secret)[lead:whole]
        yield text
        yield text.translate(bytes.maketrans(b"+/", b"-_"))


@dataclass(frozen=True, slots=True)
class Forms:
    """What is sought, made ready. `all`: the longest first; `lower`: of names of fields."""

    all: tuple[bytes, ...]
    lower: frozenset[bytes]
    longest: int

    @staticmethod
    def of(forms: Iterable[bytes]) -> Forms:
        found = tuple(sorted({form for form in forms if form}, key=len, reverse=True))
        return Forms(found, frozenset(form.lower() for form in found), len(found[0]) if found else 1)


class Sought(Secret):
    """A value and the forms in which a server may say it back, made once and gone with it."""

    __slots__ = ("_forms",)

    def __init__(self, value: bytes) -> None:
        super().__init__(value)
        self._forms: Forms | None = None

    @property
    def forms(self) -> Forms:
        if self._forms is None:
            self._forms = Forms.of(needles(self.reveal()))
        return self._forms


def forms(secrets: Sequence[Secret]) -> Forms:
    """Of all of them. A form of one may stand in a form of another."""
    if len(secrets) == 1 and isinstance(secrets[0], Sought):
        return secrets[0].forms
    return Forms.of(form for each in secrets for form in needles(each.reveal()))


def _within(form: bytes, data: bytes) -> bool:
    """CPython 3.11 looks for what is short in what is long (Objects/stringlib/fastsearch.h) by an algorithm of 2 to 5 times the
    time, which saves it from texts made to be slow. Forms are of one secret, which nobody makes for that."""
    if len(form) >= _LONG or len(data) <= _WINDOW:
        return form in data
    step = _WINDOW - len(form) + 1  # what begins in one window and ends behind it begins the next
    return any(data.find(form, at, at + _WINDOW) >= 0 for at in range(0, len(data), step))


class Scrubber:
    """For one response. `hits`: how often something was masked."""

    def __init__(self, forms: Forms) -> None:
        self._forms = forms.all
        self._longest = forms.longest
        self._lower = forms.lower
        self._kept = b""
        self.hits = 0

    def whole(self, data: bytes) -> bytes:
        """Of a value that is complete: a header, a reason."""
        for form in self._forms:
            if _within(form, data):
                self.hits += data.count(form)
                data = data.replace(form, MASK * len(form))
        return data

    def named(self, name: bytes) -> bool:
        """Whether the name of a field, in lower case, holds a form. It cannot be masked: a name is read by programs."""
        found = any(form in name for form in self._lower)
        self.hits += found
        return found

    def feed(self, data: bytes) -> bytes:
        """What may go on now; the rest comes with a later `feed`, or with `end`."""
        data = self.whole(self._kept + data)
        cut = len(data) - self._begun(data)
        self._kept = data[cut:]
        return data[:cut]

    def end(self) -> bytes:
        kept, self._kept = self._kept, b""
        return kept

    def _begun(self, data: bytes) -> int:
        """The longest end of `data` that is the beginning of a form."""
        longest = 0
        tail = data[-(self._longest - 1) :] if self._longest > 1 else b""
        for form in self._forms:
            at = tail.find(form[:1], max(0, len(tail) - len(form) + 1))
            while at >= 0 and len(tail) - at > longest:
                if form.startswith(tail[at:]):
                    longest = len(tail) - at
                    break
                at = tail.find(form[:1], at + 1)
        return longest
