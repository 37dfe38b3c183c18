"""cases.md C: files, from both sides of the wall."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.installation import Installation

NAMES = [
    "été 🎉.txt".encode(),
    b"with spaces",
    b"-rf",
    b"new\nline",
    b"%2e%2e",
    b"x" * 255,
    b"invalid \xff\xfe utf-8",
]


@pytest.mark.parametrize("name", NAMES, ids=[repr(name)[:24] for name in NAMES])
def test_any_name_works_byte_exact(server: Installation, alice: str, name: bytes) -> None:
    """C38."""
    data = os.urandom(4096)
    server.ok("files", "put", alice, b"./names/" + name, "-", stdin=data)
    assert server.ok("files", "get", alice, b"./names/" + name, "-").out == data
    seen = server.ok("exec", alice, "--", "cat", b"/home/user/names/" + name)
    assert seen.out == data
    listed = server.ok("files", "ls", alice, "names", "--json").json()["entries"]
    assert name in {
        entry["name"].encode() if entry.get("name") is not None else _decode(entry["name_b64"]) for entry in listed
    }
    server.ok("files", "rm", alice, b"./names/" + name)
    assert server.run("files", "stat", alice, b"./names/" + name).code == 4


def _decode(text: str) -> bytes:
    import base64

    return base64.b64decode(text)


def test_put_then_at_once_cat(server: Installation, alice: str) -> None:
    """C40: 500 times, through the SDK so that the moment between is short."""
    from ringfence.client import SyncClient

    with SyncClient(socket=server.socket) as client:
        for number in range(500):
            client.put_file(alice, "now.txt", str(number).encode())
            done = client.exec(alice, ["cat", "now.txt"])
            assert done["stdout"] == str(number), number


def test_a_large_upload_needs_little_memory(server: Installation, person: str, tmp_path: Path) -> None:
    """C41, short form: 512 MiB, sparse at the source; the server's peak grows by less than 64 MiB."""
    source = tmp_path / "large"
    with source.open("wb") as file:
        file.truncate(512 << 20)
        file.seek((512 << 20) - 3)
        file.write(b"end")
    kernel = server.kernel_pid()

    def peak() -> int:
        status = Path(f"/proc/{kernel}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])

    before = peak()
    server.ok("files", "put", person, "large", str(source))
    assert server.shell(person, "stat -c %s large; tail -c 3 large").text == f"{512 << 20}\nend"
    assert peak() - before < 64 * 1024
    server.ok("files", "rm", person, "large")


def test_parallel_puts_into_a_new_deep_folder(server: Installation, person: str) -> None:
    """C42."""

    def put(number: int) -> int:
        return server.run("files", "put", person, f"a/b/c/d/{number}", "-", stdin=str(number).encode()).code

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(put, range(8))) == [0] * 8
    seen = server.shell(person, "cat a/b/c/d/* | wc -c; stat -c '%U %a' a a/b a/b/c/d | sort -u").text
    assert seen == "8\nuser 755\n"


def test_links_lead_nowhere_outside(server: Installation, person: str) -> None:
    """C47; the race is in tests/security/test_files.py."""
    server.ok("exec", person, "--", "sh", "-c", "ln -s /etc/passwd p; ln -s / r; ln -s ../../../../../etc d")
    for path in ("p", "r/etc/passwd", "d/passwd"):
        got = server.run("files", "get", person, path, "-")
        assert got.code in (3, 4) and b"root:" not in got.out, path
    assert server.run("files", "put", person, "r/tmp/ringfence-escape", "-", stdin=b"x").code in (3, 4)
    assert not Path("/tmp/ringfence-escape").exists()
    inside = server.ok("exec", person, "--", "cat", "p")
    assert inside.out.startswith(b"root:")  # the control: in the box the link does lead somewhere


def test_crlf_stays(server: Installation, alice: str) -> None:
    """C48."""
    data = b"one\r\ntwo\r\n"
    server.ok("files", "put", alice, "crlf.txt", "-", stdin=data)
    server.ok("exec", alice, "--", "sh", "-c", r"sed -i 's/two/2/' crlf.txt")
    assert server.ok("files", "get", alice, "crlf.txt", "-").out == b"one\r\n2\r\n"


def test_tmp_can_be_emptied(server: Installation, person: str) -> None:
    """C49."""
    assert server.shell(person, "touch /tmp/x; rm -rf /tmp; true; ls -d /tmp && stat -c %a /tmp").text == "/tmp\n1777\n"
    server.ok("box", "stop", person)
    assert server.shell(person, "stat -c %a /tmp; ls -A /tmp | wc -l; touch /tmp/y && echo ok").text == "1777\n0\nok\n"


def test_get_put_stat_and_ls_agree(server: Installation, alice: str, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_bytes(os.urandom(100_000))
    source.chmod(0o755)
    server.ok("files", "put", alice, "/workspace/tool", str(source))
    info = server.ok("files", "stat", alice, "/workspace/tool", "--json").json()
    assert (info["kind"], info["size"]) == ("file", 100_000)
    server.ok("files", "get", alice, "/workspace/tool", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == source.read_bytes()
    assert "tool" in server.ok("files", "ls", alice, "/workspace").text
    assert server.run("files", "get", alice, "absent", "-").code == 4
    assert server.run("files", "get", alice, "/etc/passwd", "-").code in (2, 3)
    refused = server.run("files", "get", alice, "/workspace", "--json", "-")
    assert json.loads(refused.out)["error"]["remedy"] is not None
