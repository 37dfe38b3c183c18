"""The self-check's questions about files: text, binary, large, missing, forbidden, odd names (cases C). Declarations."""

from __future__ import annotations

from ringfence.prove.self_check import Check, Found, Place, equal, gone, refused

NAMES = ("✨☽🚀", "two words", "-rf", "new\nline", "%2e", "n" * 255)


def _round_trip(place: Place, name: str | bytes, data: bytes) -> Found:
    place.put(name, data)
    back = place.get(name)
    place.client.remove_file(place.user, name)
    return back == data, f"{len(back)} bytes, {'the same' if back == data else 'others'}"


def _seen_in_box(place: Place) -> Found:
    for n in range(20):
        place.put("fresh", str(n).encode())
        seen = place.out("cat fresh")
        if seen != str(n):
            return False, f"{n}: {seen!r}"
    gone(place, "fresh")
    return True, "20 of 20"


def _names(place: Place) -> Found:
    wrong = [name for name in NAMES if not _round_trip(place, f"odd/{name}", name.encode())[0]]
    raw = _round_trip(place, b"odd/\xff\xfe", b"raw")[0]
    gone(place, "odd")
    return not wrong and raw, f"wrong: {wrong}, invalid UTF-8: {raw}"


def _touched(place: Place) -> Found:
    place.sh("touch empty")
    found = place.get("empty")
    gone(place, "empty")
    return equal(found, b"")


def _not_readable(place: Place) -> Found:
    place.put("closed", b"x")
    place.sh("chmod 000 closed")
    found = refused(lambda: place.get("closed"), "refused")
    gone(place, "closed")
    return found


def _directory(place: Place, write: bool) -> Found:
    place.sh("mkdir -p folder/inner")
    found = refused(
        lambda: place.put("folder", b"x") if write else place.get("folder"), "conflict", "refused", "invalid"
    )
    gone(place, "folder")
    return found


def _not_writable(place: Place) -> Found:
    place.sh("mkdir closed.d; chmod 500 closed.d")
    found = refused(lambda: place.put("closed.d/new", b"x"), "refused")
    place.sh("chmod 700 closed.d; rm -r closed.d")
    return found


def _replaced(place: Place) -> Found:
    place.put("again", b"first \xc3\x28")
    place.put("again", b"second \xc3\x29")
    found = place.get("again")
    gone(place, "again")
    return equal(found, b"second \xc3\x29")


def _links(place: Place) -> Found:
    place.sh("ln -s /etc/passwd out; ln -s / root")
    read, _ = refused(lambda: place.get("out"), "refused", "not_found")
    wrote, words = refused(lambda: place.put("root/tmp/planted", b"x"), "refused", "not_found")
    gone(place, "out", "root")
    return read and wrote, words


def _tmp_again(place: Place) -> Found:
    place.sh("rm -rf /tmp/* /tmp 2>/dev/null")
    return equal(place.out("stat -c %a /tmp; echo x > /tmp/x && cat /tmp/x; rm -f /tmp/x").split(), ["1777", "x"])


CHECKS = (
    Check("file-text", "the same text", lambda p: _round_trip(p, "text", b"great #content\nincluding newlines\n")),
    Check("file-unicode", "the same text", lambda p: _round_trip(p, "utf", "✨☽︎✨🌞🚀".encode())),
    Check("file-crlf", "C48: byte for byte", lambda p: _round_trip(p, "crlf", b"a\r\nb\n\r")),
    Check("file-binary", "byte for byte", lambda p: _round_trip(p, "binary", b"\xc3\x28\0")),
    Check("file-large", "16 MiB, byte for byte", lambda p: _round_trip(p, "large", b"\xc3\0" * (8 << 20))),
    Check("file-empty", "0 bytes", lambda p: _round_trip(p, "nothing", b"")),
    Check("file-touched", "0 bytes", _touched),
    Check("file-absolute", "folders are made", lambda p: _round_trip(p, "/workspace/deep/er/file", b"x")),
    Check("file-relative", "folders are made", lambda p: _round_trip(p, "deep/er/file", b"x")),
    Check("file-missing", "not_found", lambda p: refused(lambda: p.get("nonexistent"), "not_found")),
    Check(
        "file-nonsense", "not_found", lambda p: refused(lambda: p.get("https:/x.example/Bart%C5%82omiej"), "not_found")
    ),
    Check("file-outside", "refused", lambda p: refused(lambda: p.get("/etc/passwd"), "refused")),
    Check("file-climbing", "refused", lambda p: refused(lambda: p.put("../../x", b"x"), "refused")),
    Check("file-read-forbidden", "refused: no permission", _not_readable),
    Check("file-write-forbidden", "refused: no permission", _not_writable),
    Check("file-read-directory", "an error that is not a file", lambda p: _directory(p, False)),
    Check("file-write-directory", "an error that is not a file", lambda p: _directory(p, True)),
    Check("file-replace", "the second content", _replaced),
    Check("file-names", "C38: byte for byte", _names),
    Check("file-then-cat", "C40: always there", _seen_in_box),
    Check("file-links", "C47: nothing is followed out", _links),
    Check("file-tmp", "C49: /tmp is there and 1777", _tmp_again),
)
