"""Archives from a hostile hand, and trees of a hostile box: threats.md F08, F10, F11, F15, cases.md C52.

Each archive goes to a real spawner; the control is Python's own tarfile, told to trust it, which does what the attack wants.
"""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.spawner import archive, protocol
from ringfence.spawner.archive import Entry
from ringfence.spawner.protocol import Limits
from tests.support import copies_rig, disk_rig
from tests.support.copies_rig import BOX, ROOMY, Broken, entry, file, folder, made, pack, settle, tree_of, unpack
from tests.support.disk_rig import MIB
from tests.support.installation import eventually
from tests.support.spawner_rig import Rig, status_of

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def shared() -> Iterator[Rig]:
    rig = disk_rig.with_disk("accounting")
    yield rig
    rig.clean()


@pytest.fixture
def rig(shared: Rig) -> Iterator[Rig]:
    """With a box whose tree has one file."""
    uid = shared.provision(BOX, limits=ROOMY)["uid"]
    copies_rig.as_box(uid, lambda: (tree_of(shared) / "home" / "kept").write_text("old"))
    yield shared
    shared.ask(protocol.Remove(BOX))


def device(name: str, kind: bytes) -> tarfile.TarInfo:
    info = entry(name, kind)
    info.devmajor, info.devminor = 1, 3
    return info


def raw(*entries: Entry, tail: bytes = archive.END) -> bytes:
    return b"".join(archive.head(one) for one in entries) + tail


def with_records(records: dict[str, str], data: bytes = b"", size: int | None = None) -> bytes:
    info = entry("home/f")
    info.size, info.pax_headers = len(data) if size is None else size, records
    blocks = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape") + data
    return blocks + bytes(-len(data) % 512) + archive.END


def sparse(text: bytes, size: str = "4096") -> bytes:
    records = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "home/f"}
    return with_records(records | {"GNU.sparse.realsize": size}, text + bytes(-len(text) % 512))


OUT = "/ringfence-test-out"
GLOBAL = tarfile.TarInfo.create_pax_global_header({"path": "home/x"})
HOSTILE: dict[str, tuple[bytes, str]] = {
    "up": (made(file("../out")), "a name that leads out"),
    "up inside": (made(file("home/../../out")), "a name that leads out"),
    "absolute": (made(file(f"/tmp{OUT}")), "an absolute name"),
    "beside the parts": (made(file("tmp/f")), "not below home or workspace"),
    "another tree": (made(file(".put/f")), "not below home or workspace"),
    "the tree itself": (made(folder(".")), "not below"),
    "a part that is a link": (made(entry("home", tarfile.SYMTYPE, target="/")), "may be the tree's own part"),
    "a part that is a file": (made(file("home")), "may be the tree's own part"),
    "link, then through it": (
        made(entry("home/l", tarfile.SYMTYPE, target="/tmp"), file(f"home/l{OUT}")),
        "goes through a link",
    ),
    "link, then in its place": (
        made(entry("home/l", tarfile.SYMTYPE, target=f"/tmp{OUT}"), file("home/l")),
        "named twice",
    ),
    "link inside, then through it": (
        made(folder("home/d"), entry("home/l", tarfile.SYMTYPE, target="d"), file("home/l/f")),
        "goes through a link",
    ),
    "folder, then a link in its place": (
        made(folder("home/d"), entry("home/d", tarfile.SYMTYPE, target="/"), file("home/d/f")),
        "named twice",
    ),
    "hard link out": (made(entry("home/h", tarfile.LNKTYPE, target="/etc/passwd")), "an absolute name"),
    "hard link up": (made(entry("home/h", tarfile.LNKTYPE, target="../box.json")), "a name that leads out"),
    "hard link to nothing": (made(entry("home/h", tarfile.LNKTYPE, target="home/none")), "does not come before it"),
    "hard link to a folder": (
        made(folder("home/d"), entry("home/h", tarfile.LNKTYPE, target="home/d")),
        "not permitted",
    ),
    "hard link to a part": (made(entry("home/h", tarfile.LNKTYPE, target="workspace")), "a second name of a folder"),
    "hard link through a link": (
        made(
            folder("home/d"),
            file("home/d/f"),
            entry("home/l", tarfile.SYMTYPE, target="d"),
            entry("home/h", tarfile.LNKTYPE, target="home/l/f"),
        ),
        "goes through a link",
    ),
    "character device": (made(device("home/n", tarfile.CHRTYPE)), "a character device"),
    "block device": (made(device("home/n", tarfile.BLKTYPE)), "a block device"),
    "fifo": (made(entry("home/n", tarfile.FIFOTYPE)), "a FIFO"),
    "no kind at all": (made(entry("home/n", b"Z")), "a kind that is none"),
    "twice": (made(file("home/f"), file("home/f")), "named twice"),
    "no folder": (made(file("home/d/f")), "does not come before it"),
    "a file as a folder": (made(file("home/f"), file("home/f/g")), "does not come before it"),
    "NUL in a name": (with_records({"path": "home/a\0b"}), "no name of a file"),
    "NUL in a target": (
        with_records({"linkpath": "a\0b"}).replace(b"0" + bytes(100), b"2" + bytes(100)),
        "no header",  # whose sum is wrong now
    ),
    "a long name": (made(file("home/" + "n" * 256)), "no name of a file"),
    "a long path": (made(file("home/" + "n/" * 2046 + "f")), "no name of a file (at most 4095 bytes"),
    "a long path, the folders too": (made(*(folder("home" + "/n" * n) for n in range(1, 2050))), "no name of a file"),
    "records without end": (with_records({"comment": "x" * (65 << 10)}), "the limit is 65536"),
    "records for all": (GLOBAL + archive.END, "a record for all that follows"),
    "old long name": (
        made(file("home/" + "n/" * 60 + "f"), form=tarfile.GNU_FORMAT),
        "--format=pax",
    ),
    "size that is none": (with_records({"size": "-5"}), "a size that is no number"),
    "size that is huge": (with_records({"size": str(1 << 62)}), "a file may have"),
    "time that is none": (with_records({"mtime": "inf"}), "a time that is none"),
    "time that is far": (with_records({"mtime": "1" * 30}), "a time that is none"),
    "sparse out of its size": (sparse(b"1\n4000\n500\n"), "leads out of it"),
    "sparse, backwards": (sparse(b"2\n100\n10\n50\n10\n"), "leads out of it"),
    "sparse, stored too little": (sparse(b"1\n0\n4000\n"), "not that of what is stored"),
    "sparse, a map without end": (sparse(b"9" * 600), "a map of a sparse file that has no end"),
    "sparse, a map of millions": (sparse(b"9999999\n"), "the limit is 65536"),
    "sparse, a bomb": (sparse(b"1\n%d\n0\n" % (1 << 40), str(1 << 40)), "a file may have"),
    "no archive": (b"x" * 2048, "no header of an archive"),
    "nothing": (b"", "ends too early"),
    "cut short": (made(file("home/f", bytes(4096)))[:1500], "ends too early"),
    "cut between entries": (made(file("home/f"))[:1024], "ends too early"),
    "more behind its end": (made(file("home/f")) + made(file("home/g")), "goes on behind its end"),
    "zeros behind its end": (made(file("home/f")) + bytes(2 * MIB), "goes on behind its end"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_archive_is_refused_with_its_reason(rig: Rig, case: str) -> None:
    """F08, F10, C52: and the tree of before is as it was."""
    data, why = HOSTILE[case]
    before = copies_rig.hash_of(tree_of(rig))
    with pytest.raises(Broken) as refusal:
        unpack(rig, data)
    assert why in refusal.value.text, refusal.value.text
    assert refusal.value.code in ("refused", "too_large")
    settle(rig, whole=False)
    assert copies_rig.hash_of(tree_of(rig)) == before
    assert not Path(f"/tmp{OUT}").exists()
    assert unpack(rig, made(file("home/f")))["entries"] == 1  # control: an honest one is taken


TRUSTING = """
import os, sys, tarfile
os.chroot(sys.argv[1]); os.chdir("/in")
tarfile.open(fileobj=sys.stdin.buffer, mode="r|").extractall(**({"filter": "fully_trusted"} if hasattr(tarfile, "data_filter") else {}))
"""


@pytest.mark.parametrize(
    "case", ["up", "absolute", "link, then through it", "link, then in its place", "fifo", "character device"]
)
def test_control_who_trusts_them_is_led_out(tmp_path: Path, case: str) -> None:
    for name in ("in/home", "tmp"):
        (tmp_path / name).mkdir(parents=True)
    subprocess.run([sys.executable, "-c", TRUSTING, tmp_path], input=HOSTILE[case][0], check=True)
    out = [tmp_path / "out", tmp_path / f"tmp{OUT}"]
    odd = tmp_path / "in/home/n"
    assert any(one.exists() for one in out) or not stat.S_ISREG(odd.lstat().st_mode)


def test_set_id_bits_are_dropped_and_counted(rig: Rig) -> None:
    said = unpack(rig, made(file("home/u", mode=0o4755), file("home/g", mode=0o2755), folder("home/t", 0o1777)))
    assert said == {"entries": 3, "bytes": 8, "left_out": {"special_bits": 3}}
    settle(rig)
    modes = [stat.S_IMODE((tree_of(rig) / "home" / name).stat().st_mode) for name in "ugt"]
    assert modes == [0o755, 0o755, 0o777]


def test_links_out_are_kept_as_the_names_that_they_are(rig: Rig) -> None:
    """What they lead to is looked up in the box, where they were made, or by the files helper, which follows none out."""
    unpack(
        rig,
        made(entry("home/l", tarfile.SYMTYPE, target="/etc/shadow"), entry("home/u", tarfile.SYMTYPE, target="../..")),
    )
    settle(rig)
    assert [os.readlink(tree_of(rig) / "home" / name) for name in "lu"] == ["/etc/shadow", "../.."]


def test_everything_is_the_boxes_own_whatever_the_archive_says(rig: Rig) -> None:
    info, data = file("home/f")
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    unpack(rig, made((info, data), folder("home/d")))
    settle(rig)
    uid = tree_of(rig).stat().st_uid
    assert uid != 0
    assert {(path.stat().st_uid, path.stat().st_gid) for path in (tree_of(rig) / "home").iterdir()} == {(uid, uid)}


def test_a_million_entries_and_a_large_hole_are_counted_before_they_are_written(rig: Rig) -> None:
    """C52: 10^6 entries, a 10 GiB sparse file."""
    block = b"".join(archive.head(Entry(b"home/%07d" % number, "file")) for number in range(10_000))
    with copies_rig.open_socket(rig, protocol.Unpack(BOX, ROOMY)) as wire:
        copies_rig.send(wire, block, end=False)
        with pytest.raises(Broken, match="disk_full: more entries than the box may have: 4096"):
            copies_rig.answer(wire)
    assert len(os.listdir(rig.home / "boxes" / BOX / "beside" / "home")) == ROOMY.inodes
    hole = raw(Entry(b"home/hole", "file", size=10 << 30, stretches=((10 << 30, 0),)))
    with pytest.raises(Broken, match="too_large: 'home/hole': 10737418240 bytes, a file may have 8589934592"):
        unpack(rig, hole)
    unpack(rig, hole, limits=Limits(disk=64 * MIB, inodes=1024, fsize=16 << 30))  # control
    settle(rig)
    assert (tree_of(rig) / "home" / "hole").stat().st_blocks * 512 < MIB


def test_packing_stays_in_the_tree(rig: Rig, tmp_path: Path) -> None:
    """F11: through links, into what is mounted, into files of others. Control: tar as root takes the mount along."""
    home, uid = tree_of(rig) / "home", tree_of(rig).stat().st_uid
    secret = tmp_path / "secret"
    secret.write_text("of the host")

    def plant() -> None:
        os.symlink(secret, home / "link")
        os.symlink(tmp_path, home / "folder")
        os.mkdir(home / "mount")

    copies_rig.as_box(uid, plant)
    subprocess.run(["mount", "--bind", tmp_path, home / "mount"], check=True)
    try:
        data, said = pack(rig)
        taken = subprocess.run(["tar", "-c", "-C", home, "."], capture_output=True, check=True).stdout
    finally:
        subprocess.run(["umount", home / "mount"], check=True)
    assert b"of the host" in taken
    assert b"of the host" not in data and said["left_out"] == {"mount": 1}
    with tarfile.open(fileobj=io.BytesIO(data)) as read:
        assert {one.name: one.linkname for one in read if one.issym()} == {
            "home/link": str(secret),
            "home/folder": str(tmp_path),
        }


@pytest.mark.parametrize(("what", "count"), [("folders", 12_000), ("names", 6_000)])
def test_a_tree_that_wants_more_memory_than_there_is_for_it(what: str, count: int) -> None:
    """So many folders in one, or files of several names. Control: with the bound that is there it is packed."""
    rig = disk_rig.with_disk("accounting")

    def plant() -> None:
        os.chdir(tree_of(rig) / "home")
        for number in range(count):
            name = f"{number:05d}" + "n" * 245
            if what == "folders":
                os.mkdir(name)
            else:
                Path(name).touch()
                os.link(name, f"{number:05d}" + "m" * 245)

    try:
        copies_rig.as_box(rig.provision(BOX, limits=Limits(disk=64 * MIB, inodes=50_000))["uid"], plant)
        assert pack(rig)[1]["entries"] == 12_000 + 2
        rig.stop()
        path = next((rig.home / "runtime").rglob("spawner/packing.py"))
        path.write_text(path.read_text().replace("MEMORY = 1 << 30", "MEMORY = 14 << 20"))
        rig.start()
        with pytest.raises(Broken, match="too_large: the tree has more folders in one, or files of several names"):
            pack(rig)
    finally:
        rig.clean()


def test_what_is_not_the_boxes_own_is_not_read(rig: Rig) -> None:
    """A file of root's in its tree, whoever put it there: packing runs as the box."""
    theirs = tree_of(rig) / "home" / "theirs"
    theirs.write_text("of root")
    theirs.chmod(0o600)
    with pytest.raises(Broken, match="refused: Operation not permitted"):
        pack(rig)
    theirs.unlink()
    assert pack(rig)[1]["entries"] == 3  # control


def test_a_tree_that_changes_meanwhile_is_never_followed_out(rig: Rig) -> None:
    """Somebody with the box's id exchanges a folder for a link for as long as it is packed, as no box in peace can."""
    home, uid, outside = tree_of(rig) / "home", tree_of(rig).stat().st_uid, rig.home.parent / "outside"
    outside.mkdir(0o755)
    (outside / "secret").write_text("of the host")

    def plant() -> None:
        os.mkdir(home / "d")
        os.symlink(outside, home / "l")
        assert (home / "l" / "secret").read_text() == "of the host"  # control: whoever follows it has it
        for number in range(200):
            (home / "d" / str(number)).write_text("mine")

    copies_rig.as_box(uid, plant)
    over = threading.Event()

    def exchange() -> None:
        while not over.is_set():
            os.rename(home / "d", home / "x")
            os.rename(home / "l", home / "d")
            os.rename(home / "d", home / "l")
            os.rename(home / "x", home / "d")

    racer = threading.Thread(target=exchange)
    racer.start()
    try:
        packed = [_packed(rig) for _ in range(30)]
    finally:
        over.set()
        racer.join()
    assert any(b"mine" in data for data in [*packed, _packed(rig)])
    assert all(b"of the host" not in data for data in packed)


def _packed(rig: Rig) -> bytes:
    try:
        return pack(rig)[0]
    except Broken:
        return b""


def test_the_child_is_the_box_and_sees_its_tree_alone(rig: Rig) -> None:
    """Whatever it could be talked into: its root, its ids, its rights, its descriptors."""
    with copies_rig.open_socket(rig, protocol.Unpack(BOX, ROOMY)):
        root = rig.home / "boxes" / BOX / "beside"
        pid = _child(rig, root)
        seen = status_of(pid)
        assert seen["Uid"].split() == [str(root.stat().st_uid)] * 4
        assert (int(seen["CapEff"], 16), int(seen["CapBnd"], 16), seen["NoNewPrivs"]) == (0, 0, "1")
        opened = {os.readlink(f"/proc/{pid}/fd/{fd}").partition(":")[0] for fd in os.listdir(f"/proc/{pid}/fd")}
        assert opened == {"/dev/null", "socket", str(root)}
        settle(rig, whole=False)


def _child(rig: Rig, root: Path) -> int:
    assert rig.process is not None
    children = Path(f"/proc/{rig.process.pid}/task/{rig.process.pid}/children")
    found: list[int] = []

    def locked_in() -> bool:
        """It has been forked when the socket comes, and locks itself in by and by."""
        found[:] = [int(pid) for pid in children.read_text().split() if os.path.samefile(f"/proc/{pid}/root", root)]
        return len(found) == 1 and "\nNoNewPrivs:\t1\n" in Path(f"/proc/{found[0]}/status").read_text()

    eventually(locked_in, what="its child is locked in")
    return found[0]
