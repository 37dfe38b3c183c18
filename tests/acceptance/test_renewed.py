"""Access tokens for a refresh token, and the company's root, with a real server, a real box, curl and Python in it."""

from __future__ import annotations

import contextlib
import json
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl

from ringfence.prove.receiving import Answering, at_work
from tests.support.egress_tls import Authority
from tests.support.installation import Installation, installation

API, TOKENS, RAW, STRANGE = "api.test", "auth.test", "raw.test", "strange.test"
REFRESH = "refresh-canary-1"
ASK = f'curl -sS --max-time 60 -H "Authorization: Bearer $CLOUD_TOKEN" https://{API}/things'
PYTHON = "import urllib.request as r; print(r.urlopen('https://%s/', timeout=60).read().decode())"


@dataclass
class World:
    """What the two services know. `good`: the refresh token that is taken, once; `life`: seconds of an access token."""

    good: str = REFRESH
    life: int = 5
    issued: list[str] = field(default_factory=list)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    arrived: list[str] = field(default_factory=list)


class _Service(ThreadingHTTPServer):
    world: World


class _Tokens(Answering):
    server: _Service

    def do_POST(self) -> None:
        world = self.server.world
        form = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        world.asked.append((self.path, form))
        if form.get("refresh_token") != world.good:
            body = json.dumps({"error": "invalid_grant"}).encode()
            self.send_response(400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        number = len(world.issued) + 2
        world.good = f"refresh-canary-{number}"
        world.issued.append(f"access-canary-{number}")
        said = {"access_token": world.issued[-1], "expires_in": world.life, "refresh_token": world.good}
        self.say(json.dumps(said).encode())


class _Api(Answering):
    server: _Service

    def do_GET(self) -> None:
        self.server.world.arrived.append(self.headers.get("Authorization", ""))
        self.say(b"hello")


@contextlib.contextmanager
def service(handler: type[Answering], context: ssl.SSLContext, world: World) -> Iterator[int]:
    server = _Service(("127.0.0.1", 0), handler)
    server.world = world
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with at_work(server):
        yield server.server_port


@contextlib.contextmanager
def serving() -> Iterator[tuple[Installation, World]]:
    """The company's root signs for all of these but STRANGE."""
    world = World()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        company, stranger = Authority(folder, "company"), Authority(folder, "stranger")
        ports = {host: stack.enter_context(service(_Api, company.context(host), world)) for host in (API, RAW)}
        ports[TOKENS] = stack.enter_context(service(_Tokens, company.context(TOKENS), world))
        ports[STRANGE] = stack.enter_context(service(_Api, stranger.context(STRANGE), world))
        pins = ", ".join(f'"{host}=127.0.0.1:{port}"' for host, port in ports.items())
        settings = f'[egress]\npins = [{pins}]\nroot_ca = "{company.path}"\n'
        made = stack.enter_context(installation(settings=settings))
        made.ok("user", "add", "alice")
        yield made, world


def test_a_command_outlives_its_access_tokens_and_never_sees_one() -> None:
    with serving() as (made, world):
        grant = {"token_url": f"https://{TOKENS}/token", "client_id": "app", "refresh_token": REFRESH}
        wrong = made.run("secret", "set", "alice", "cloud", "--recipe", "oauth-refresh", "--host", API,
                         stdin=REFRESH.encode())  # fmt: skip
        assert wrong.code == 2 and REFRESH.encode() not in wrong.out + wrong.err
        made.ok("secret", "set", "alice", "cloud", "--recipe", "oauth-refresh", "--host", API, "--env", "CLOUD_TOKEN",
                stdin=json.dumps(grant).encode())  # fmt: skip
        made.ok("egress", "allow", "alice", API)
        assert world.asked == [], "not before it is needed"
        seen = made.shell("alice", f'echo "$CLOUD_TOKEN"; {ASK}; sleep 6; echo "$CLOUD_TOKEN"; {ASK}; env')
        assert seen.text.count("hello") == 2, seen
        first, second = (line for line in seen.text.replace("hello", "").splitlines()[:2])
        assert first == second, "what stands for it is the same before and after"
        assert world.arrived == ["Bearer access-canary-2", "Bearer access-canary-3"]
        sent = [form["refresh_token"] for _, form in world.asked]
        assert sent == [REFRESH, "refresh-canary-2"] and {path for path, _ in world.asked} == {"/token"}
        made.stop()
        made.start()
        assert "hello" in made.shell("alice", ASK).text, "another server goes on with what was stored"
        world.good = "another one"
        refused = made.shell("alice", f"sleep 6; {ASK}")
        error = json.loads(refused.text)["error"]
        assert error["code"] == "credential_unavailable"
        assert "ringfence secret set" in error["message"], "who can do something is told what"
        listed = made.ok("secret", "ls", "alice", "--json").json()["secrets"]
        assert [(each["kind"], each["renewal"]["state"]) for each in listed] == [("oauth_refresh", "refused")]
        assert "invalid_grant" in listed[0]["renewal"]["why"]
        assert b"sign in anew" in made.ok("secret", "ls", "alice").err
        rows = made.ok("audit", "ls", "--json").text
        assert "secret.refused" in rows and "secret.renewed" in rows
        for told in (rows, made.log.read_text(), refused.text, seen.text, json.dumps(listed)):
            assert "refresh-canary" not in told and "access-canary" not in told


def test_the_company_s_root_is_believed_in_the_box_where_a_host_is_passed_through() -> None:
    with serving() as (made, world):
        for host in (RAW, STRANGE):
            made.ok("egress", "allow", "alice", host, "--passthrough")
        made.ok("egress", "allow", "alice", API)
        for host in (RAW, API):  # the server's own certificate, and one of the user's CA
            assert made.shell("alice", f"curl -sS https://{host}/").text == "hello", host
            assert made.shell("alice", f'python3 -c "{PYTHON % host}"').text == "hello\n", host
        assert made.shell("alice", f"env -i curl -sS https://{RAW}/").text == "hello", "without a variable"
        issuers = made.shell("alice", f"curl -sSv https://{RAW}/ https://{API}/ 2>&1 | grep issuer:").text
        assert "company" in issuers and issuers.count("company") == 1, issuers
        before = len(world.arrived)
        assert made.shell("alice", f"curl -sS https://{STRANGE}/ || echo $?").text.strip().endswith("60")
        assert "CERTIFICATE_VERIFY_FAILED" in made.shell("alice", f'python3 -c "{PYTHON % STRANGE}" 2>&1').text
        assert made.shell("alice", f"curl -sSk https://{STRANGE}/").text == "hello", "the control: it is there"
        assert len(world.arrived) == before + 1
