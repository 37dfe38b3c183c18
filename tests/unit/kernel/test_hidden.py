"""Settings and their errors as people see them: no password, no query of a URL."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ringfence.host.kernel.declared import Webhook
from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.hidden import scrubbed, secrets_of, shown
from ringfence.host.kernel.hidden_values import shown_url
from ringfence.host.kernel.settings import Settings
from ringfence.host.kernel.settings_file import parse
from ringfence.host.kernel.settings_text import as_toml, values

HOOK = Webhook("pay", "https://pay.example/hook?token=canary-token", "/k", "https://pay.example/look?t=canary-look")

UPSTREAM = '[[model_upstream]]\nalias = "a"\nprovider = "openai"\nmodel = "m"\n'


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("postgresql://user:canary@host/db", "postgresql://user:…@host/db"),
        ("postgresql://user:canary@host:5432/db?sslmode=require", "postgresql://user:…@host:5432/db?(hidden)"),
        ("postgresql:///db?password=canary", "postgresql:///db?(hidden)"),
        ("https://h.example/p?token=canary", "https://h.example/p?(hidden)"),
        ("postgresql://user@host/db", "postgresql://user@host/db"),
        ("postgresql://host:5432/db", "postgresql://host:5432/db"),
        ("sqlite:////srv/a@b/x.db", "sqlite:////srv/a@b/x.db"),
        ("", ""),
    ],
)
def test_a_url(url: str, seen: str) -> None:
    assert shown_url(url) == seen


@pytest.mark.parametrize(
    "password", ["can/ary", "can?ary", "canary#", "p@can:ary", "p://canary", "can@ary", "canary:", "canary/x?y@z"]
)
@pytest.mark.parametrize(
    "form", ["postgresql://user:{}@host/db", "user:{}@host/db", "postgresql://user:{}@host/db?a=b@c"]
)
def test_a_password_that_should_have_been_escaped(form: str, password: str) -> None:
    seen = shown_url(form.format(password))
    assert "user:…@" in seen
    assert not any(piece in seen for piece in ("can", "ary")), seen


def test_a_password_without_a_host() -> None:
    assert shown_url("postgresql://user:canary/db") == "postgresql://user:…"


def test_what_config_show_prints() -> None:
    """And what it prints cannot be taken for settings."""
    settings = replace(Settings(), database="postgresql://u:canary@h/db", webhook=(HOOK,))
    assert "canary" in as_toml(settings) and "canary" in json.dumps(values(settings)), "control"
    text, told = as_toml(shown(settings)), json.dumps(values(shown(settings)))
    assert "canary" not in text + told
    assert 'database = "postgresql://u:…@h/db"' in text
    with pytest.raises(Invalid) as refused:
        parse('database = "postgresql://u:…@h/db"')
    assert "config show" in refused.value.remedy


@pytest.mark.parametrize(
    "text",
    [
        'database = "mysql://u:canary@h/db"',
        'database = "u:canary@h/db"',
        '[[webhook]]\nname = "p"\nurl = "ftp://h/?canary"\nsecret_file = "/k"\nlookup_url = "https://h/?canary"',
        '[[webhook]]\nname = "p"\nurll = "https://h/?canary"',
        'webhook = "https://h/?canary"',
        'webhook = ["https://h/?canary"]',
        '[[webhook]]\nname = "p"\nurl = "https://h/"\nsecret_file = "whsec_canary"\nlookup_url = "https://h/"',
        f'{UPSTREAM}base_url = "https://h/v1"\nkey = "sk-proj-Canary-canary"',
        f'{UPSTREAM}base_url = "https://h/v1"\nkay = "sk-canary"',
        f'{UPSTREAM}base_url = "https://u:canary@h/v1"',
        f'{UPSTREAM}base_url = "https://canary@h/v1"',
        f'{UPSTREAM}base_url = "https://h/v1?api-key=canary"',
        f'{UPSTREAM}base_url = "https://h/v1"\nheaders = {{ authorization = "Bearer canary" }}',
        '[egress]\nupstream_proxy = "http://u:canary@10.0.0.1:3128"',
        '[egress]\nupstream_proxy = "http://canary@10.0.0.1:3128"',
        '[egress]\nupstream_proxy = "u:canary@10.0.0.1:3128"',
        '[egress]\nupstream_proxy = "u:canary"',
        '[egress]\nupstream_proxy = ["http://u:canary@10.0.0.1"]',
        '[egress]\nnameservers = ["u:canary@10.0.0.1"]',
        '[egress]\npins = ["x.test=http://u:canary@10.0.0.1:3128"]',
        '[egress]\ninternal = ["https://u:canary@x.test=10.0.0.0/8"]',
        '[egress]\nrules = ["allow https://u:canary@x.test/p"]',
        '[egress]\nrules = ["allow x.test GET :443 /p?token=canary"]',
        '[egress]\nrules = ["allow x.test", "https://x.test/p?token=canary"]',
        '[egress]\nrules = [{ allow = "canary" }]',
    ],
)
def test_an_error_of_a_settings_file(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(text)
    error = refused.value
    assert "canary" not in (json.dumps(error.as_json()) + repr(error)).lower()
    assert error.__cause__ is None, "nothing of it in a traceback"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[egress]\nupstream_proxy = "proxy.corp.test:3128"', "proxy.corp.test:3128"),
        ('[egress]\nupstream_proxy = "http://u:canary@10.0.0.1:3128"', "http://…@10.0.0.1:3128"),
        ('[egress]\npins = ["x.test=2001:db8::1/64"]', "x.test=2001:db8::1/64"),
        ('[egress]\nrules = ["permit x.test :443"]', "write `allow HOST`"),
        (f'{UPSTREAM}base_url = "ftp://llm.test"', "'base_url': 'ftp://llm.test'"),
    ],
)
def test_what_an_error_still_shows(text: str, said: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(text)
    assert said in f"{refused.value.message} {refused.value.remedy}"


def test_the_arguments_of_a_program_that_prints_the_key() -> None:
    text = '[vault]\nkey = "command:/usr/bin/get --token canary"\nold = ["command:/usr/bin/get"]'
    seen = as_toml(shown(parse(text)))
    assert "canary" in as_toml(parse(text)) and "canary" not in seen, "control"
    assert '"command:/usr/bin/get …"' in seen and '"command:/usr/bin/get"' in seen
    with pytest.raises(Invalid, match="not allowed") as refused:
        parse(seen)
    assert "config show" in refused.value.remedy


def test_what_is_scrubbed_of_a_log() -> None:
    settings = replace(Settings(), database="postgresql://u:p%40canary@h/db?sslmode=require", webhook=(HOOK,))
    words = secrets_of(settings)
    line = "cannot reach p@canary or p%40canary; GET /hook?token=canary-token; sslmode=require"
    assert scrubbed(line, words) == "cannot reach … or …; GET /hook?…; sslmode=require"
    assert secrets_of(replace(Settings(), database="postgresql://ringfence:ringfence@h/db")) == ()
    assert secrets_of(replace(Settings(), database="sqlite:////srv/a:bcde@f/x.db")) == ()


def test_places_and_rules_are_json() -> None:
    text = '[[webhook]]\nname = "pay"\nurl = "https://h/p?t=canary"\nsecret_file = "/k"\nlookup_url = "https://h/l"\n'
    text += '[[policy]]\ntool = "http.*"\nanswer = "ask"\nredact = ["body.card"]\n'
    told = json.loads(json.dumps(values(shown(parse(text)))))
    hook = {"name": "pay", "url": "https://h/p?(hidden)", "secret_file": "/k", "lookup_url": "https://h/l"}
    assert told["webhook"] == [hook]
    assert told["policy"] == [{"tool": "http.*", "answer": "ask", "redact": ["body.card"]}]
