"""The way out as people have it: a secret by the command line, a box, curl, and a TLS server on this host by a pin."""

from __future__ import annotations

import json
import ssl
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.egress_tls import Authority
from tests.support.installation import Installation, eventually, installation, until_file

SECRET = "s3cretVALUEs3cretVALUE0123456789"
CURL = "curl -sS --max-time 20"


@dataclass
class Heard:
    ca: Path
    port: int = 0
    authorizations: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def upstream() -> Iterator[Heard]:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)  # the server has an account of its own, and reads the CA
        authority = Authority(folder, "upstream")
        heard = Heard(authority.path)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                heard.authorizations.append(self.headers.get("Authorization", ""))
                body = json.dumps({"seen": self.headers.get("Authorization", "")}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context: ssl.SSLContext = authority.context("api.test")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        heard.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield heard
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.fixture(scope="module")
def served(upstream: Heard) -> Iterator[Installation]:
    settings = f'[egress]\npins = ["api.test=127.0.0.1:{upstream.port}"]\nroot_ca = "{upstream.ca}"\n'
    with installation(settings=settings) as made:
        made.ok("user", "add", "alice")
        words = ("secret", "set", "alice", "token", "--recipe", "bearer", "--host", "api.test", "--env", "API_TOKEN")
        made.ok(*words, "--as", "alice", stdin=SECRET.encode())
        yield made


def test_denied_then_allowed_then_the_secret_at_the_upstream_and_never_in_the_box(
    served: Installation, upstream: Heard
) -> None:
    ask = f'{CURL} -H "Authorization: Bearer $API_TOKEN" https://api.test/x'
    denied = json.loads(served.ok("exec", "alice", "--", "sh", "-c", ask).text)["error"]
    assert denied["code"] == "denied" and not upstream.authorizations
    served.ok("egress", "allow", "alice", "api.test", "--as", "alice")
    said = served.ok("exec", "alice", "--", "sh", "-c", ask + "; env").text
    assert upstream.authorizations == [f"Bearer {SECRET}"]
    assert SECRET not in said  # neither in the environment nor in what the upstream reflected
    assert SECRET not in served.ok("audit", "ls").text


def test_a_revoked_secret_is_worth_nothing_at_once(served: Installation, upstream: Heard) -> None:
    """To a command that has its placeholder from before. Control: until then it is the secret."""
    served.ok("egress", "allow", "alice", "api.test", "--path", "/r", "--as", "alice")
    ask, before = f'{CURL} -H "Authorization: Bearer $API_TOKEN" https://api.test/r', len(upstream.authorizations)
    with served.popen("exec", "alice", "--", "sh", "-c", f"{ask}; {until_file('revoked')}; {ask}") as running:
        eventually(lambda: len(upstream.authorizations) > before, what="the first request")
        served.ok("secret", "rm", "alice", "token", "--as", "alice")
        served.ok("exec", "alice", "--", "touch", "revoked")
        said = running.communicate(timeout=60)[0].decode()
    assert upstream.authorizations[before:] == [f"Bearer {SECRET}"] and SECRET not in said
    assert json.loads(said[said.rindex('{"error"') :])["error"]["code"] in (
        "placeholder_expired",
        "credential_unavailable",
    )
