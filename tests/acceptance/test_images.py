"""`ringfence image`, and boxes with images: built, given, taken back, side by side with the host's /usr."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.images_rig import MARK, remark, system
from tests.support.installation import Installation, eventually, installation
from tests.support.whole_backups import at, home

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return system(tmp_path_factory.mktemp("system") / "root", "one")


@pytest.fixture
def server() -> Iterator[Installation]:
    """Of its own: its images are counted."""
    with installation() as made:
        for name in ("alice", "bob", "carol"):
            made.ok("user", "add", name)
        yield made


def build(server: Installation, name: str, *words: str) -> dict[str, Any]:
    answer = server.run("image", "build", name, *words, "--json", limit=600).json()
    assert isinstance(answer, dict)
    return answer


def images(server: Installation) -> dict[str, dict[str, Any]]:
    """By each name, and by id."""
    found = server.run("image", "ls", "--json").json()["images"]
    return {key: each for each in found for key in (each["id"], *each["names"])}


def mark(server: Installation, user: str) -> str:
    out = server.outcome(
        user,
        f"cat /{MARK} 2>/dev/null || echo host; python3 -c 'print(6*7)'; (echo > /usr/x) 2>/dev/null && echo written",
    )
    first, answer, *rest = out["stdout"].splitlines()
    assert (answer, rest) == ("42", [])
    return str(first)


def box(server: Installation, user: str) -> dict[str, Any]:
    shown = server.run("box", "show", user, "--json").json()
    assert isinstance(shown, dict)
    return shown


def upgraded(server: Installation, user: str, image: str) -> dict[str, Any]:
    answer = server.run("box", "upgrade", user, "--image", image, "--json").json()
    assert isinstance(answer, dict)
    return answer


def test_several_images_side_by_side(server: Installation, small: Path) -> None:
    one = build(server, "debian", "--from", str(small))
    assert (one["new"], one["names"]) == (True, ["debian"])
    again = build(server, "same", "--from", str(small))
    assert (again["id"], again["new"], again["names"]) == (one["id"], False, ["debian", "same"])

    assert upgraded(server, "alice", "debian")["box"]["image_bound"] == one["id"]
    remark(small, "two")
    two = build(server, "debian", "--from", str(small))
    remark(small, "one")
    assert two["id"] != one["id"] and images(server)["debian"]["id"] == two["id"]
    upgraded(server, "bob", "debian")
    marks = [mark(server, user) for user in ("alice", "bob", "carol")]
    assert marks == ["one", "two", "host"]  # a name that has moved moved nobody
    assert [box(server, user)["image"] for user in ("alice", "bob")] == [one["id"], two["id"]]
    assert box(server, "carol")["image"].startswith("host:")

    started = {user: box(server, user)["started_at"] for user in ("alice", "bob", "carol")}
    server.stop()
    server.start()
    assert [mark(server, user) for user in ("alice", "bob", "carol")] == marks
    assert {user: box(server, user)["started_at"] for user in started} == started  # adopted, all three
    assert {name: len(each["running"]) for name, each in images(server).items() if ":" not in name} == {
        "host": 1,
        "debian": 1,
        "same": 1,
    }

    refused = server.run("image", "rm", two["id"], "--json")
    assert refused.code != 0 and "bob" in refused.json()["error"]["message"]
    assert server.run("box", "upgrade", "--all", "--json").code == 0  # alice's name stands for the other now
    assert [mark(server, user) for user in ("alice", "bob", "carol")] == ["two", "two", "host"]
    assert upgraded(server, "bob", one["id"])["drifted"] == ["image"]  # back to the former id
    assert mark(server, "bob") == "one"
    upgraded(server, "bob", "default")
    assert mark(server, "bob") == "host"
    assert server.run("image", "rm", "same", "--json").json() == {"id": one["id"], "names": ["same"], "removed": True}
    assert one["id"] not in images(server) and not (server.home / "images" / one["id"].partition(":")[2]).exists()


def wrong(server: Installation, *words: str) -> str:
    """What a command that is refused says."""
    answer = server.run(*words, "--json", limit=600)
    assert answer.code != 0, answer.text
    return str(answer.json()["error"]["message"])


def kept(server: Installation) -> set[str]:
    folder = server.home / "images"
    return {path.name for path in folder.iterdir()} - {"lock"} if folder.is_dir() else set()


def test_what_cannot_be_an_image_leaves_nothing(server: Installation, tmp_path: Path) -> None:
    assert "no image on this host" in wrong(server, "image", "rm", "debian")
    assert "made of a folder or of a suite" in wrong(server, "image", "build", "debian")
    assert "made of a folder or of a suite" in wrong(
        server, "image", "build", "debian", "--from", "/", "--suite", "bookworm"
    )
    assert "host" in wrong(server, "image", "build", "host", "--from", "/")
    assert "no name" in wrong(server, "image", "build", "../x", "--from", "/")
    assert "no suite" in wrong(server, "image", "build", "debian", "--suite", "--chroot=/")
    assert "no package" in wrong(server, "image", "build", "debian", "--suite", "bookworm", "--include", "a;b")
    assert "no address" in wrong(server, "image", "build", "debian", "--suite", "bookworm", "--mirror", "--verbose")
    assert "cannot be read" in wrong(server, "image", "build", "debian", "--from", str(tmp_path / "none"))
    assert "has no usr" in wrong(server, "image", "build", "debian", "--from", str(tmp_path))
    without = system(tmp_path / "without", "x", python=False)
    assert "no box comes up on it" in wrong(server, "image", "build", "debian", "--from", str(without))
    shutil.copy("/usr/bin/cat", without / "usr/bin/python3")  # says whatever it is told to read, and is no interpreter
    assert "no box comes up on it" in wrong(server, "image", "build", "debian", "--from", str(without))
    assert "no image" in wrong(server, "box", "upgrade", "alice", "--image", "debian")
    assert kept(server) == set()


def test_a_build_that_is_killed_leaves_no_image(server: Installation, small: Path) -> None:
    with server.popen("image", "build", "debian", "--from", str(small)) as building:
        eventually(lambda: any(name.startswith(".build-") for name in kept(server)), what="a build that has begun")
        building.kill()
    half = [name for name in kept(server) if name.startswith(".build-")]
    assert kept(server) == set(half) and len(half) == 1
    told = [each for each in server.run("sweep", "--dry-run", "--json").json()["found"] if each["kind"] == "image"]
    assert [each["what"] for each in told] == [f"1 half-made image: {half[0]}"]
    assert [each["action"] for each in server.run("sweep", "--json").json()["found"] if each["kind"] == "image"] == [
        "removed"
    ]
    assert kept(server) == set()
    (server.home / "images" / half[0]).mkdir()
    one = build(server, "debian", "--from", str(small))
    assert kept(server) == {"names.json", one["id"].partition(":")[2]}


def test_a_suite_is_what_boxes_have_by_the_settings_and_is_asked_for_after_a_restore(tmp_path: Path) -> None:
    """A whole Debian, from where this machine has its packages; a backup that is put back where the image is not."""
    release = os_release()
    with installation(settings='[boxes]\nimage = "debian"\n') as made:
        made.ok("user", "add", "alice")
        assert "no image 'debian'" in wrong(made, "box", "start", "alice")
        one = build(made, "debian", "--suite", release, "--include", "hello")
        assert one["source"] == f"debootstrap {release} hello" and not Path("/usr/bin/hello").exists()
        out = made.outcome("alice", "hello -t; python3 -c 'import ssl, ctypes; print(6*7)'; awk 'BEGIN { print 1 }'")
        assert out["stdout"].splitlines() == ["hello, world", "42", "1"]
        assert "by the settings" in wrong(made, "image", "rm", "debian")
        file = tmp_path / "backup.tar"
        facts = made.ok("backup", "create", "--output", str(file), "--with-key", "--json").json()
        assert facts["images"] == [one["id"]]
        place = made.home
        made.stop()
        made.ok("uninstall", "--purge", "--yes", "--force")
        assert not place.exists()
        with home("other") as there:
            other = Installation(there)
            said = other.ok("backup", "restore", str(file), "--home", str(there)).text
            assert f"boxes start with {one['id']}" in said
            with at(there) as server:
                error = server.run("box", "start", "alice", "--json").json()["error"]
                assert one["id"] in error["message"] and "image build" in error["remedy"]
                upgraded(server, "alice", "host")
                assert server.outcome("alice", "echo $((6*7))")["stdout"] == "42\n"


def os_release() -> str:
    """The code name of this host's own release."""
    lines = Path("/etc/os-release").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)["VERSION_CODENAME"].strip('"')
