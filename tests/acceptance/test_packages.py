"""Package managers work into HOME and what they installed survives a restart of the box. No network: indexes on disk."""

from __future__ import annotations

import io
import tarfile
import zipfile
from functools import cache

from tests.support.installation import Installation


@cache  # an archive holds the time: what is told of it is to be of the same one
def wheel() -> bytes:
    """A wheel of one module and one console script, by the binary distribution format (PEP 427)."""
    buffer = io.BytesIO()
    info = "greeter-1.0.dist-info"
    files = {
        "greeter.py": "def main():\n    print('hello from greeter')\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: greeter\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ngreeter = greeter:main\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return buffer.getvalue()


@cache
def npm_package() -> bytes:
    buffer = io.BytesIO()
    files = {
        "package/package.json": '{"name": "waver", "version": "1.0.0", "bin": {"waver": "index.js"}}',
        "package/index.js": "#!/usr/bin/env node\nconsole.log('hello from waver')\n",
    }
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text), 0o755
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


def test_pip_installs_into_home_and_survives(server: Installation, person: str) -> None:
    server.ok("files", "put", person, "index/greeter-1.0-py3-none-any.whl", "-", stdin=wheel())
    server.ok("exec", person, "--", "pip", "install", "-q", "--no-index", "--find-links", "index", "greeter")
    for _ in range(2):
        assert server.ok("exec", person, "--", "greeter").text == "hello from greeter\n"
        assert server.ok("exec", person, "--", "python", "-c", "import greeter; greeter.main()").code == 0
        server.ok("box", "stop", person)


def test_a_virtual_environment_works(server: Installation, person: str) -> None:
    server.ok("files", "put", person, "index/greeter-1.0-py3-none-any.whl", "-", stdin=wheel())
    script = "python3 -m venv env && env/bin/pip install -q --no-index --find-links index greeter"
    done = server.shell(person, script)
    assert done.code == 0, done.errors
    assert server.ok("exec", person, "--", "env/bin/greeter").text == "hello from greeter\n"


def test_npm_installs_into_home_and_survives(server: Installation, person: str) -> None:
    server.ok("files", "put", person, "waver-1.0.0.tgz", "-", stdin=npm_package())
    done = server.shell(person, "npm install -g --offline --no-audit --no-fund ./waver-1.0.0.tgz", limit=180)
    assert done.code == 0, done.errors
    for _ in range(2):
        assert server.ok("exec", person, "--", "waver").text == "hello from waver\n"
        server.ok("box", "stop", person)


def test_apt_explains_itself(server: Installation, person: str) -> None:
    done = server.run("exec", person, "--", "apt-get", "install", "hello")
    assert done.code != 0
    assert "pip" in done.errors + done.text  # says what works instead


def test_git_works_on_a_bundle(server: Installation, person: str) -> None:
    script = (
        "git init -q r && cd r && git config user.email a@b && git config user.name n && echo x > f && git add f"
        " && git commit -qm one && git bundle create -q ../r.bundle HEAD && cd .. && git clone -q r.bundle s && cat s/f"
    )
    done = server.shell(person, script)
    assert (done.code, done.text) == (0, "x\n"), done.errors
