"""Rules that can match no call are refused; those that can are not."""

from __future__ import annotations

from typing import Any

import pytest

from ringfence.guest.toolset import SPECS
from ringfence.host.capabilities.webhook import Place, WebhookTool
from ringfence.host.kernel.declared import Webhook, rules
from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.matchable import TOOLS
from ringfence.host.kernel.settings_file import parse
from tests.support.engine_rig import RealClock

PAY = Webhook("pay", "https://h/p", "/k", "https://h/l")
HOOK = '[[webhook]]\nname = "pay"\nurl = "https://h/p"\nsecret_file = "/k"\nlookup_url = "https://h/l"\n'
ON_PLACE = '[[policy]]\ntool = "http.webhook"\nanswer = "deny"\nwhere = {{ name = "{name}" }}\n'


def test_the_table_is_that_of_the_tools() -> None:
    host = WebhookTool([Place(PAY, b"k" * 16)], RealClock()).capability
    there: dict[str, Any] = {str(spec["name"]): spec["parameters"] for spec in SPECS} | {host.name: host.schema}
    assert {name: frozenset(schema["properties"]) for name, schema in there.items()} == dict(TOOLS)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"tool": "shel"}, "did you mean shell?"),
        ({"tool": "HTTP.webhook"}, "did you mean http.webhook?"),
        ({"tool": "[http.webhook"}, "did you mean http.webhook?"),
        ({"tool": "https.*"}, "matches one of shell"),
        ({"where": {"bdy.n": 1}}, "http.webhook has name, body.…"),
        ({"where": {"body": "x"}}, "body"),
        ({"where": {"name": 5}}, "name"),
        ({"where": {"name.x": "pay"}}, "name"),
        ({"where": {"body.n": float("nan")}}, "nothing is equal to nan"),
        ({"where": {"body.n": float("inf")}}, "nothing is equal to inf"),
        ({"tool": "*", "where": {"command": "x", "name": "pay"}}, "one tool"),
        ({"tool": "shell", "where": {"body.n": 1}}, "shell has command"),
        ({"answer": "allow", "redact": ["name"]}, "http.webhook has body.…"),
        ({"answer": "allow", "redact": ["body"]}, "http.webhook has body.…"),
        ({"tool": "shell", "redact": ["path"]}, "shell has command"),
    ],
)
def test_a_rule_that_matches_nothing_is_refused(rule: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("?", r"\?")):
        rules([{"tool": "http.webhook", "answer": "deny", **rule}])


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"tool": "*"},
        {"tool": "http.*", "where": {"name": "pa?", "body.n": 1.5}, "redact": ["body.card"]},
        {"tool": "[rs]*", "where": {"path": "/workspace/*"}},
        {"tool": "*", "redact": ["command", "body.card"]},
        {"tool": "shell", "where": {"command": "rm *", "timeout": 5}},
    ],
)
def test_a_rule_that_matches_something_is_taken(rule: dict[str, Any]) -> None:
    assert len(rules([{"tool": "http.webhook", "answer": "deny", **rule}])) == 1


def test_a_place_that_nobody_declared() -> None:
    with pytest.raises(Invalid, match="rule 2 of the policy is on the webhook 'pya'") as caught:
        parse(HOOK + ON_PLACE.format(name="p*") + ON_PLACE.format(name="pya"))
    assert "did you mean pay?" in caught.value.remedy
    with pytest.raises(Invalid, match="rule 1"):
        parse(ON_PLACE.format(name="pay"))
    assert len(parse(HOOK + ON_PLACE.format(name="pa*")).policy) == 1
