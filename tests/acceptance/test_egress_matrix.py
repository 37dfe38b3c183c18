"""Tools as people have them, inside a box, unchanged: each asks a TLS server outside with a stand-in for its credential.

READ is intercepted: there the credential arrives. UNREAD is passed through, so that a tool must believe the server itself, by a
root of the host's: there the stand-in arrives as it is.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.installation import Installation, installation
from tests.support.packages import pack
from tests.support.tools_upstream import FETCH_ONLY, READ, UNREAD, Tools, tools

IS_ROOT = os.geteuid() == 0
SECRET = "ghp_r3alR3alR3alR3alR3alR3alR3alR3alR3al"
ROOTS = "/etc/ssl/certs/ca-certificates.crt"
# The server, in a mount namespace where the host has one more public root.
WITH_ROOT = ("unshare", "--mount", "sh", "-c", f'mount --bind "$0" {ROOTS} && exec "$@"')
PACKAGES = ("aiohttp", "httpx", "requests")  # with what they need, put into the box from our own environment


@dataclass(frozen=True)
class Matrix:
    made: Installation
    tools: Tools


def _packed() -> bytes:
    """lib/ with the packages, bin/uv."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        pack(archive, PACKAGES)
        [uv] = [path for path in importlib.metadata.files("uv") or () if path.name == "uv"]
        archive.add(str(Path(str(uv.locate())).resolve()), "bin/uv")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def matrix() -> Iterator[Matrix]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)  # the server has an account of its own, and reads the CA
        outside = stack.enter_context(tools(folder))
        pins = ", ".join(f'"{host}=127.0.0.1:{outside.port}"' for host in (READ, UNREAD, FETCH_ONLY))
        more = folder / "roots.pem"
        more.write_text(Path(ROOTS).read_text() + outside.ca.read_text())
        settings = f"[egress]\npins = [{pins}]\n" + ("" if IS_ROOT else f'root_ca = "{outside.ca}"\n')
        before = (*WITH_ROOT, str(more)) if IS_ROOT else ()
        made = stack.enter_context(installation(settings=settings, before=before))
        made.ok("user", "add", "alice")
        for host in (READ, FETCH_ONLY):
            words = ("--recipe", "github", "--host", host, "--env", f"TOKEN_{host[0].upper()}")
            made.ok("secret", "set", "alice", host[0], *words, "--as", "alice", stdin=SECRET.encode())
        made.ok("egress", "allow", "alice", READ, "--as", "alice")
        made.ok("egress", "allow", "alice", UNREAD, "--passthrough", "--as", "alice")
        made.ok("egress", "allow", "alice", "--preset", f"git-read:{FETCH_ONLY}", "--as", "alice")
        made.ok("exec", "alice", "--", "tar", "-x", stdin=_packed())
        yield Matrix(made, outside)


FIELD = '-H "Authorization: Bearer $TOKEN_T"'
PYTHON = "PYTHONPATH=$HOME/lib python3 -c"
HEADERS = 'headers={"Authorization": "Bearer " + os.environ["TOKEN_T"]}'
URL = 'import os; u = "https://%HOST%/%NAME%"; '
RAW = """
import os, socket, ssl
with socket.create_connection(("%HOST%", 443), 20) as plain, ssl.create_default_context().wrap_socket(plain, server_hostname="%HOST%") as s:
    s.sendall(b"GET /%NAME% HTTP/1.1\\r\\nHost: %HOST%\\r\\nConnection: close\\r\\nAuthorization: Bearer %s\\r\\n\\r\\n" % os.environb[b"TOKEN_T"])
    print(b"".join(iter(lambda: s.recv(4096), b"")).decode())
"""
CLIENT = """
import http.client, os
c = http.client.HTTPSConnection("%HOST%", timeout=20)
c.request("GET", "/%NAME%", headers={"Authorization": "Bearer " + os.environ["TOKEN_T"]})
print(c.getresponse().read().decode())
"""
AIOHTTP = """
import aiohttp, asyncio, os
async def main():
    async with aiohttp.ClientSession(trust_env=TRUST) as session:
        async with session.get("https://%HOST%/%NAME%", headers={"Authorization": "Bearer " + os.environ["TOKEN_T"]}) as answer:
            answer.raise_for_status()
            print(await answer.text())
asyncio.run(main())
"""
NODE_FETCH = """
fetch("https://%HOST%/%NAME%", {headers: {authorization: `Bearer ${process.env.TOKEN_T}`}})
  .then(async (r) => { console.log(await r.text()); process.exit(r.ok ? 0 : 1) })
"""
NODE_GET = """
require("https").get("https://%HOST%/%NAME%", {headers: {authorization: `Bearer ${process.env.TOKEN_T}`}},
  (r) => { r.pipe(process.stdout); process.exitCode = r.statusCode == 200 ? 0 : 1 })
"""
SAYS = "hello from outside"


def python(text: str) -> str:
    return f"{PYTHON} '{text}'"


# Tool -> (script, what it prints). %HOST% and %NAME% are put in.
TOOLS = {
    "curl": (f"curl -sS --fail {FIELD} https://%HOST%/%NAME%", SAYS),
    "curl-past-the-proxy": (f"curl -sS --fail --noproxy '*' {FIELD} https://%HOST%/%NAME%", SAYS),
    "wget": ('wget -qO- --header "Authorization: Bearer $TOKEN_T" https://%HOST%/%NAME%', SAYS),
    "gh": ("GH_HOST=%HOST% GH_ENTERPRISE_TOKEN=$TOKEN_T gh api %NAME%", SAYS),
    "pip": (
        "pip download -q --no-deps --no-cache-dir -d pip-%HOST% -i https://x:$TOKEN_T@%HOST%/simple greeter && ls pip-%HOST%",
        "greeter",
    ),
    "uv": (
        "bin/uv pip install -q --no-cache --python /usr/bin/python3 --target uv-%HOST% "
        "--index-url https://x:$TOKEN_T@%HOST%/simple greeter && ls uv-%HOST%",
        "greeter",
    ),
    "npm": (
        "mkdir -p npm-%HOST% && cd npm-%HOST% && npm install --no-audit --no-fund --registry https://%HOST%/npm/ "
        "--//%HOST%/npm/:_authToken=$TOKEN_T waver && ls node_modules",
        "waver",
    ),
    "requests": (
        python(f"{URL}import requests; print(requests.get(u, {HEADERS}).text)"),
        SAYS,
    ),
    "httpx": (python(f"{URL}import httpx; print(httpx.get(u, {HEADERS}).text)"), SAYS),
    "aiohttp": (python(AIOHTTP.replace("TRUST", "True")), SAYS),
    "aiohttp-past-the-proxy": (python(AIOHTTP.replace("TRUST", "False")), SAYS),
    "urllib": (
        python(f"{URL}from urllib.request import *; print(urlopen(Request(u, {HEADERS})).read().decode())"),
        SAYS,
    ),
    "http.client": (python(CLIENT), SAYS),
    "raw-socket": (python(RAW), SAYS),
    "git": ("git ls-remote https://x:$TOKEN_T@%HOST%/git/fence.git && echo hello", "hello"),
}
# What comes with roots of its own, which cannot be added to by a test: the host's are there beside ours all the same.
WITH_OWN_ROOTS = {
    "node-fetch": (f"node -e '{NODE_FETCH}'", SAYS),
    "node-https": (f"node -e '{NODE_GET}'", SAYS),
}


def ran(made: Installation, name: str, script: str, host: str) -> str:
    result = made.shell("alice", script.replace("%HOST%", host).replace("%NAME%", name))
    assert result.code == 0, (name, result.text, result.errors)
    return result.text


@pytest.mark.parametrize("name", [*TOOLS, *WITH_OWN_ROOTS])
def test_intercepted_with_the_credential(matrix: Matrix, name: str) -> None:
    script, says = (TOOLS | WITH_OWN_ROOTS)[name]
    since = len(matrix.tools.at(READ))
    said = ran(matrix.made, name, script, READ)
    assert says in said and SECRET not in said
    seen = matrix.tools.at(READ)[since:]
    assert seen and SECRET in {each.credential for each in seen}, seen
    assert not [each for each in seen if "EXAMPLE" in each.credential]


@pytest.mark.root
@pytest.mark.parametrize("name", TOOLS)
def test_passed_through_and_believed_by_a_public_root(matrix: Matrix, name: str) -> None:
    script, says = TOOLS[name]
    since = len(matrix.tools.at(UNREAD))
    assert says in ran(matrix.made, name, script, UNREAD)
    seen = matrix.tools.at(UNREAD)[since:]
    assert [each for each in seen if each.credential.startswith("ghp_EXAMPLE")], seen
    assert SECRET not in {each.credential for each in seen}


def test_node_keeps_its_own_roots(matrix: Matrix) -> None:
    count = "require('tls').rootCertificates.length"
    assert int(ran(matrix.made, "node", f'node -p "{count}"', READ)) > 100


def test_all_public_roots_of_the_host_are_in_the_bundle(matrix: Matrix) -> None:
    text = matrix.made.ok("exec", "alice", "--", "sh", "-c", 'cat "$SSL_CERT_FILE"').text
    blocks = {block.strip() for block in text.split("-----BEGIN CERTIFICATE-----")[1:]}
    ours = {block.strip() for block in Path(ROOTS).read_text().split("-----BEGIN CERTIFICATE-----")[1:]}
    assert ours and ours <= blocks
    [own] = {block.strip() for block in text.split("-----BEGIN CERTIFICATE-----")[1:]} - ours - _of(matrix.tools.ca)
    assert own in matrix.made.ok("exec", "alice", "--", "sh", "-c", 'cat "$NODE_EXTRA_CA_CERTS"').text


def _of(path: Path) -> set[str]:
    return {block.strip() for block in path.read_text().split("-----BEGIN CERTIFICATE-----")[1:]}


COMMIT = (
    "git init -q -b main work && cd work && head -c 5242880 /dev/urandom > big && git add big && "
    "git -c user.name=a -c user.email=a@b commit -qm big"
)


def test_git_push_and_clone_of_five_mebibytes_and_a_push_that_is_denied(matrix: Matrix) -> None:
    """D69."""
    made = matrix.made
    pushed = made.shell("alice", f"{COMMIT} && git push -q https://x:$TOKEN_T@{READ}/git/fence.git main")
    assert pushed.code == 0, pushed.errors
    cloned = made.shell(
        "alice", f"git clone -q https://x:$TOKEN_F@{FETCH_ONLY}/git/fence.git copy && cmp work/big copy/big"
    )
    assert cloned.code == 0, cloned.errors
    assert {each.credential for each in matrix.tools.at(FETCH_ONLY)} <= {SECRET, ""}
    since = len(matrix.tools.at(FETCH_ONLY))
    denied = made.shell("alice", f"cd copy && git push https://x:$TOKEN_F@{FETCH_ONLY}/git/fence.git main:other")
    assert denied.code != 0
    assert "no rule" in denied.errors or "denied" in denied.errors, denied.errors
    assert not matrix.tools.at(FETCH_ONLY)[since:], "nothing of it was sent"


@pytest.mark.parametrize("host", ["127.0.0.1", "[::ffff:7f00:1]", "0177.1", "2130706433", "169.254.169.254"])
def test_literal_addresses_lead_nowhere(matrix: Matrix, host: str) -> None:
    """D64: by CONNECT, as it is written, and past the proxy. The control is READ, which is that very server."""
    since = len(matrix.tools.seen)
    url = f"https://{host}:{matrix.tools.port}/"
    ask = "curl -ksS --max-time 20 -o /dev/null -w '%{http_code} ' --noproxy"
    said = matrix.made.shell("alice", f"""{ask} '' '{url}'; {ask} '*' '{url}'; {ask} '' https://{READ}/""")
    assert said.text.split()[-1] == "200" and "200" not in said.text.split()[:-1], (said.text, said.errors)
    assert [each.host for each in matrix.tools.seen[since:]] == [READ]


def test_a_denial_says_what_to_ask_for(matrix: Matrix) -> None:
    """D70."""
    said = matrix.made.shell("alice", "curl -sS -X DELETE 'https://denied.test/a/b?q=1'")
    error = json.loads(said.text)["error"]
    assert (error["code"], error["host"], error["method"], error["path"]) == ("denied", "denied.test", "DELETE", "/a/b")
    assert error["rule"] == {
        "answer": "allow",
        "host": "denied.test",
        "ports": [443],
        "methods": ["DELETE"],
        "paths": ["/a/b"],
    }
    assert "egress allow" in error["remedy"]


def test_ssh_has_no_complaint_about_the_files_of_the_system(matrix: Matrix) -> None:
    """D71."""
    result = matrix.made.shell("alice", "ssh -G localhost")
    assert result.code == 0 and "ad owner" not in result.errors, result.errors
