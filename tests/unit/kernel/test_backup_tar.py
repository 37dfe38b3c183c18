"""The file of a whole backup: there and back, and nothing but what was written."""

from __future__ import annotations

import hashlib
import io
import json
import random
import subprocess
import tarfile
import zlib
from pathlib import Path

import pytest

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.life import backup_tar as form
from ringfence.host.kernel.life.backup_tar import PART, Part, Reading, Writing, header

BLOCK = 512


def made(*items: tuple[str, list[bytes]], pack: bool = True) -> bytes:
    out = Writing()
    parts = [out.manifest({"release": "1", "boxes": 1})]
    parts += [out.part(name, data, pack=pack) for name, content in items for data in content]
    return b"".join([*parts, out.end({"gone": []})])


def read(data: bytes) -> list[Part]:
    reading = Reading(io.BytesIO(data))
    return list(reading.parts())


def refused(data: bytes) -> str:
    with pytest.raises(Invalid) as caught:
        read(data)
    return caught.value.message


SMALL = made(
    ("database", [b"rows"]), ("boxes/aaaaaaaaaaaaaaaa/tree", [b"a" * 3000, b"", b"b"]), ("ringfence.toml", [b""])
)


@pytest.mark.parametrize("pack", [True, False])
def test_there_and_back(pack: bool) -> None:
    noise = random.Random(7).randbytes(PART)
    content = [noise, bytes(PART), b"the rest"]
    data = made(("database", content), ("boxes/b/tree", [b"x"]), pack=pack)
    assert [part.data for part in read(data)] == [*content, b"x"]
    assert [(part.item, part.number) for part in read(data)] == [("database", n) for n in range(3)] + [
        ("boxes/b/tree", 0)
    ]


def test_an_empty_item_is_there() -> None:
    assert [part.item for part in read(made(("ringfence.toml", [b""])))] == ["ringfence.toml"]


def test_another_program_reads_it(tmp_path: Path) -> None:
    """As the docs say: tar, cat and zcat."""
    (tmp_path / "b.tar").write_bytes(SMALL)
    command = "tar -xOf b.tar --wildcards 'boxes/*/tree.*' | zcat"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout == b"a" * 3000 + b"b"


def test_the_index_has_every_digest() -> None:
    reading = Reading(io.BytesIO(SMALL))
    list(reading.parts())
    with tarfile.open(fileobj=io.BytesIO(SMALL)) as tar:
        members = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        stored = b"".join(members[f"boxes/aaaaaaaaaaaaaaaa/tree.{n:08d}.gz"].read() for n in range(3))  # type: ignore[union-attr]
    item = reading.index["items"]["boxes/aaaaaaaaaaaaaaaa/tree"]
    assert item == {"parts": 3, "size": 3001, "stored": len(stored), "sha256": hashlib.sha256(stored).hexdigest()}


def test_cut_anywhere_it_is_none() -> None:
    for end in range(len(SMALL)):
        assert "no whole backup" in refused(SMALL[:end])


def test_changed_anywhere_it_is_none() -> None:
    for at in range(len(SMALL)):
        changed = bytearray(SMALL)
        changed[at] ^= 0x10
        with pytest.raises(Invalid):
            read(bytes(changed))


def test_more_behind_its_end() -> None:
    assert "behind its end" in refused(SMALL + bytes(BLOCK))


def test_parts_that_are_missing_or_twice() -> None:
    blocks = members(SMALL)
    for changed in (
        blocks[:1] + blocks[2:],
        blocks[:3] + blocks[4:],
        blocks[:2] + blocks[1:],
        [*blocks[:2], blocks[3], blocks[2], *blocks[4:]],
    ):
        with pytest.raises(Invalid):
            read(b"".join(changed) + bytes(2 * BLOCK))


def members(data: bytes) -> list[bytes]:
    found, at = [], 0
    while any(data[at : at + BLOCK]):
        size = int(data[at + 124 : at + 135], 8)
        end = at + BLOCK + size + -size % BLOCK
        found.append(data[at:end])
        at = end
    return found


def hostile(**changes: object) -> bytes:
    """A manifest, and then a member as another program would write it."""
    info = tarfile.TarInfo("boxes/a/tree.00000000.gz")
    info.mode = 0o600
    for name, value in changes.items():
        setattr(info, name, value)
    out = Writing()
    return out.manifest({"release": "1"}) + info.tobuf(tarfile.PAX_FORMAT) + bytes(2 * BLOCK)


@pytest.mark.parametrize(
    "changes",
    [
        {"type": tarfile.SYMTYPE, "linkname": "/etc/shadow"},
        {"type": tarfile.LNKTYPE, "linkname": "manifest.json"},
        {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3},
        {"type": tarfile.BLKTYPE},
        {"type": tarfile.FIFOTYPE},
        {"type": tarfile.DIRTYPE},
        {"type": tarfile.GNUTYPE_SPARSE},
        {"name": "../../etc/passwd.00000000.gz"},
        {"name": "/etc/passwd.00000000.gz"},
        {"name": "x" * 200},
        {"name": "böxes.00000000.gz"},
        {"mode": 0o4755},
        {"uid": 1000},
        {"uname": "root"},
        {"mtime": 1},
        {"size": 8**11 - 1},
        {"pax_headers": {"comment": "x"}},
    ],
    ids=lambda changes: "-".join(f"{key}={value!r:.24}" for key, value in changes.items()),
)
def test_what_a_tar_can_have_otherwise_is_refused(changes: dict[str, object]) -> None:
    assert "no whole backup" in refused(hostile(**changes))


def test_a_name_that_leads_out_is_no_item() -> None:
    """With a header that is right: the names are the callers' to know (kernel.life.backups)."""
    out = Writing()
    for name in ("../x", "/etc/x", "", "a" * 81, "a\nb"):
        with pytest.raises(ValueError, match="no item"):
            out.part(name, b"")
    outside = header("../etc/passwd.00000000.gz", 0)
    assert "nothing that is in a backup" in refused(Writing().manifest({}) + outside)


def test_a_bomb_is_no_part() -> None:
    packer = zlib.compressobj(9, wbits=31)
    bomb = packer.compress(bytes(64 << 20)) + packer.flush()
    assert len(bomb) < PART
    whole = header("database.00000000.gz", len(bomb)) + bomb + bytes(-len(bomb) % BLOCK)
    assert "larger than a part may be" in refused(Writing().manifest({}) + whole)


def test_a_bomb_of_an_index_is_not_read() -> None:
    """Its size alone is refused: there are no such bytes behind it."""
    assert "nothing that is in a backup" in refused(Writing().manifest({}) + header("index", form.MAX_JSON + 1))


@pytest.mark.parametrize("index", [b"[]", b"{", b"[" * 100_000, b'{"sha256": 1}'])
def test_an_index_of_another_shape(index: bytes) -> None:
    whole = header("index", len(index)) + index + bytes(-len(index) % BLOCK) + bytes(2 * BLOCK)
    with pytest.raises(Invalid):
        read(Writing().manifest({}) + whole)


def test_another_form_names_its_release() -> None:
    text = json.dumps({"ringfence_backup": 2, "release": "9.1"}).encode()
    with pytest.raises(Invalid) as caught:
        Reading(io.BytesIO(header("manifest.json", len(text)) + text + bytes(-len(text) % BLOCK)))
    assert "form 2" in caught.value.message
    assert "9.1" in caught.value.remedy


def test_what_was_not_made_whole_says_why() -> None:
    out = Writing()
    data = (
        out.manifest({})
        + out.part("database", b"x")
        + out.failed({"code": "disk_full", "message": "no room", "remedy": "df"})
    )
    with pytest.raises(Invalid) as caught:
        read(data)
    assert caught.value.message == "the backup was not made whole: no room"
    assert "df" in caught.value.remedy
