"""A real model, small, asked from inside a box by the unmodified client of its provider's kind. `make soak` only."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator

import pytest

from tests.support.installation import Installation, installation
from tests.support.packages import pack
from tests.support.small_model import small_model

pytestmark = pytest.mark.soak
KEY = "sk-real-r3alr3alr3alr3alr3al"
# A base URL and a key are all it has, from the environment.
ASK = """
import openai, os
said, client = "", openai.OpenAI(max_retries=0, timeout=120)
asked = dict(model="small", messages=[{"role": "user", "content": "Write a long story about a fox."}], max_tokens=24, temperature=0)
for chunk in client.chat.completions.create(**asked, stream=True):
    said += chunk.choices[0].delta.content or ""
whole = client.chat.completions.create(**asked)
assert said.strip() and whole.choices[0].message.content.strip(), (said, whole)
print(whole.usage.completion_tokens, os.environ["OPENAI_API_KEY"])
"""


def _settings(url: str) -> str:
    words = {"alias": "small", "provider": "openai", "base_url": url, "model": "smollm2", "key": "small-key"}
    lines = "".join(f'{name} = "{value}"\n' for name, value in words.items())
    return f"[[model_upstream]]\n{lines}window = 2048\nmax_output = 256\n"


@pytest.fixture
def made() -> Iterator[Installation]:
    with small_model() as url, installation(settings=_settings(url)) as ours:
        ours.ok("user", "add", "alice")
        ours.ok("secret", "set", "alice", "small-key", "--tenant-wide", stdin=KEY.encode())
        yield ours


def test_the_client_of_a_box_streams_a_real_model(made: Installation) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as there:
        pack(there, ("openai",))
    made.ok("exec", "alice", "--", "tar", "-x", stdin=archive.getvalue())
    asked = made.run("exec", "alice", "--", "env", "PYTHONPATH=lib", "python3", "-c", ASK, limit=240)
    assert asked.code == 0, (asked.text, asked.err[-2000:])
    tokens, key = asked.text.split()
    assert 0 < int(tokens) <= 24 and key.startswith("sk-") and "EXAMPLE" in key and key != KEY
    shown = made.ok("user", "show", "alice", "--json").json()["models"]
    assert KEY not in made.log.read_text()
    assert shown["calls"] == 2 and int(tokens) <= shown["output_tokens"] <= 2 * 24, "it was counted"
