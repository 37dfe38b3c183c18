"""The spawner and images: a box has the one that its start names, root's and nobody else's, and no other box has it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.host.install.images_tree import Copier
from ringfence.spawner import protocol
from ringfence.spawner.protocol import HOST_IMAGE, Limits
from tests.support import spawner_rig
from tests.support.images_rig import MARK, remark, system
from tests.support.spawner_rig import Refusal, Rig

pytestmark = pytest.mark.root
BOXES = ("a" * 16, "b" * 16, "c" * 16)
GONE = f"tree:{'0' * 32}"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return system(tmp_path_factory.mktemp("system") / "root", "one")


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = spawner_rig.make()
    (made.home / "images").mkdir(mode=0o711)
    made.start()
    yield made
    made.clean()


def placed(rig: Rig, small: Path, mark: str) -> str:
    """As `image build` leaves one."""
    remark(small, mark)
    half = rig.home / "images" / "half"
    half.mkdir(mode=0o711)
    fds = [os.open(each, os.O_RDONLY) for each in (small, half)]
    image = Copier(*fds).run()
    for fd in fds:
        os.close(fd)
    half.rename(folder(rig, image))
    return image


def folder(rig: Rig, image: str) -> Path:
    return rig.home / "images" / image.partition(":")[2]


def start(rig: Rig, box: str, image: str) -> None:
    rig.provision(box)
    rig.ask(protocol.Start(box, Limits(), image))


def mark(rig: Rig, box: str) -> str:
    return str(rig.shell(box, f"cat /{MARK} 2>/dev/null || echo host")["out"]).strip()


def test_each_box_has_its_own(rig: Rig, small: Path) -> None:
    one, two = placed(rig, small, "one"), placed(rig, small, "two")
    for box, image in zip(BOXES, (one, two, HOST_IMAGE), strict=True):
        start(rig, box, image)
    assert [mark(rig, box) for box in BOXES] == ["one", "two", "host"]
    rig.stop()
    rig.start()
    assert [mark(rig, box) for box in BOXES] == ["one", "two", "host"]
    rig.ask(protocol.Stop(BOXES[0]))
    start(rig, BOXES[0], two)
    assert mark(rig, BOXES[0]) == "two"


def test_it_is_read_only_and_brings_its_own_links_and_no_more_of_etc(rig: Rig, small: Path) -> None:
    start(rig, BOXES[0], placed(rig, small, "one"))
    options = rig.shell(
        BOXES[0], "while read -r line; do case $line in *' /usr '*) echo $line;; esac; done </proc/self/mountinfo"
    )["out"].split()[5]
    assert {"ro", "nosuid", "nodev"} <= set(options.split(","))
    assert rig.shell(BOXES[0], "echo x > /usr/bin/x")["rc"] != 0
    awk = Path("/usr/bin/awk").resolve().name
    assert rig.shell(BOXES[0], "awk 'BEGIN { print 6*7 }'")["out"] == "42\n"
    assert rig.shell(BOXES[0], "ls /etc/alternatives")["out"] == "awk\n" and awk
    assert rig.shell(BOXES[0], "ls -d /bin/sh /lib64 /etc/ssl/certs")["rc"] == 0
    assert "user:" in rig.shell(BOXES[0], "cat /etc/passwd")["out"]


def test_names_and_ids_are_found(rig: Rig, small: Path) -> None:
    one = placed(rig, small, "one")
    (rig.home / "images/names.json").write_text(
        f'{{"debian": "{one.partition(":")[2]}", "lost": "{"0" * 32}", "bad": "../.."}}'
    )

    def found(name: str) -> str:
        return str(rig.ask(protocol.FindImage(name))["image"])

    assert (found("debian"), found(one), found("host")) == (one, one, "host")
    for name in ("lost", "bad", "unknown", GONE):
        with pytest.raises(Refusal) as refusal:
            found(name)
        assert refusal.value.code == "not_found"


@pytest.mark.parametrize("image", ["", "debian", "tree:..", f"tree:{'0' * 31}/", "/etc", "../boxes", f"{GONE}\n"])
def test_a_start_takes_an_id_and_nothing_else(rig: Rig, image: str) -> None:
    rig.provision(BOXES[0])
    with pytest.raises(Refusal) as refusal:
        rig.ask(protocol.Start(BOXES[0], Limits(), image))
    assert refusal.value.code == "bad_request"


def test_one_that_is_not_there_is_said_and_the_box_stays_as_it_is(rig: Rig) -> None:
    rig.provision(BOXES[0])
    with pytest.raises(Refusal) as refusal:
        rig.ask(protocol.Start(BOXES[0], Limits(), GONE))
    assert refusal.value.code == "unavailable" and "image build" in refusal.value.remedy
    assert rig.ask(protocol.Observe(BOXES[0]))["state"] == "stopped"
    start(rig, BOXES[0], HOST_IMAGE)


def test_what_somebody_else_could_have_written_is_refused(rig: Rig, small: Path) -> None:
    """The same image with each of the walls taken away; whole, it starts."""
    image = placed(rig, small, "one")
    place = folder(rig, image)
    rig.provision(BOXES[0])

    def refused() -> str:
        with pytest.raises(Refusal) as refusal:
            rig.ask(protocol.Start(BOXES[0], Limits(), image))
        return refusal.value.code

    for path in (place, place / "usr", place / "etc/ld.so.cache", rig.home / "images"):
        mode = path.stat().st_mode & 0o777
        path.chmod(mode | 0o022)
        assert refused() == "refused", path
        path.chmod(mode)
        os.chown(path, rig.kernel[0], rig.kernel[1])
        assert refused() == "refused", path
        os.chown(path, 0, 0)
    aside = rig.home / "aside"
    for path in (place, place / "usr", place / "etc"):
        path.rename(aside)
        path.symlink_to(aside)
        assert refused() == "refused", path
        path.unlink()
        aside.rename(path)
    start(rig, BOXES[0], image)
    assert mark(rig, BOXES[0]) == "one"


def test_what_a_killed_build_leaves_is_found_and_taken_away(rig: Rig, small: Path) -> None:
    whole = placed(rig, small, "one")
    for name in (".build-0123456789abcdef", ".gone-fedcba98"):
        shutil.copytree(folder(rig, whole), rig.home / "images" / name / "image", symlinks=True)
    (rig.home / "images" / ".build-aa").mkdir()
    busy = os.open(rig.home / "images" / ".build-aa", os.O_RDONLY)
    fcntl.flock(busy, fcntl.LOCK_EX)

    def left() -> list[str]:
        return [each["what"] for each in rig.ask(protocol.Debris())["found"] if each["debris"] == "image"]

    assert left() == ["2 half-made images: .build-0123456789abcdef, .gone-fedcba98"]
    assert rig.ask(protocol.Clear("", "image"))["gone"]
    assert left() == []
    assert sorted(path.name for path in (rig.home / "images").iterdir()) == sorted(
        [".build-aa", whole.partition(":")[2]]
    )
    os.close(busy)
    assert left() == ["1 half-made image: .build-aa"]
