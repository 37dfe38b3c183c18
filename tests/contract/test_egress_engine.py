"""The way out of real boxes, whole: engine, spawner, worker, curl in the box, a TLS upstream on loopback by a pin."""

from __future__ import annotations

import asyncio

import pytest

from ringfence.host.egress.configuration import Bounds
from ringfence.host.kernel.audit import Lane
from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward.ports import Hold
from ringfence.host.kernel.outward.rules import Verdict
from ringfence.host.kernel.ports import Command
from tests.support.driver_stage import own_installation
from tests.support.egress_engine import SECRET, error_of, outside, until
from tests.support.engine_rig import eventually

__all__ = ["own_installation"]
pytestmark = pytest.mark.root
CURL = "curl -sS --max-time 20"


async def test_a_placeholder_in_the_box_is_the_secret_at_the_upstream() -> None:
    async with outside() as o:
        await o.secret("alice")
        denied = await o.said("alice", f"{CURL} https://api.test/x")
        assert error_of(denied)["code"] == "denied" and not o.upstream.arrived
        await o.allow("alice")
        said = await o.said(
            "alice", f'echo "$GH_TOKEN"; {CURL} -H "Authorization: Bearer $GH_TOKEN" https://api.test/x'
        )
        assert o.upstream.arrived[0].value("authorization") == b"Bearer " + SECRET
        assert said.startswith("ghp_EXAMPLE") and SECRET.decode() not in said


async def test_revoked_is_revoked_at_once_and_for_a_connection_that_is_open() -> None:
    async with outside() as o:
        credential = await o.secret("alice")
        await o.allow("alice")
        ask = f'{CURL} -H "Authorization: Bearer $GH_TOKEN" https://api.test/x'
        command = await o.start("alice", f"{ask}; touch first; while ! test -e go; do sleep 0.05; done; {ask}")
        await eventually(lambda: o.upstream.arrived, "the first request")
        await o.vault.revoke(o.store.credentials, credential.id)
        await o.egress.revoke(credential.id)
        await o.run("alice", "touch go")
        ended = await command.outcome()
        assert ended.stdout is not None
        second = ended.stdout.head.decode().splitlines()[-1]
        assert error_of(second[second.rindex('{"error"') :])["code"] == "credential_unavailable"
        assert len(o.upstream.arrived) == 1


async def test_another_users_placeholder_is_refused_and_told() -> None:
    async with outside(("alice", "bob")) as o:
        await o.secret("alice")
        await o.allow("alice")
        await o.allow("bob")
        command = await o.start("alice", 'echo "$GH_TOKEN"; sleep 30', output="stream")
        placeholder = ""
        async for _, data in command.output():
            placeholder = data.decode().strip()
            break
        assert placeholder.startswith("ghp_EXAMPLE")
        said = await o.said("bob", f'{CURL} -H "Authorization: Bearer {placeholder}" https://api.test/x')
        assert error_of(said)["code"] == "placeholder_unknown" and not o.upstream.arrived
        # the control: where it was made for, the very same text is the secret
        said = await o.said("alice", f'{CURL} -H "Authorization: Bearer $GH_TOKEN" https://api.test/x')
        assert o.upstream.arrived[0].value("authorization") == b"Bearer " + SECRET
        told = await o.audited("egress.finding")  # the upstream says in its answer what it was sent: that is one, too
        [found] = [row for row in told if row["details"]["kind"] == "placeholder_unknown"]
        assert found["subject"] == f"box:{await o.box('bob')}" and placeholder not in str(found)
        await command.stop(0.1)
        await command.outcome()


async def test_a_command_that_ended_takes_its_placeholder_and_its_port_with_it() -> None:
    async with outside() as o:
        await o.secret("alice")
        await o.allow("alice")
        first = await o.said("alice", 'echo "$GH_TOKEN $https_proxy"')
        placeholder, proxy = first.split()
        said = await o.said("alice", f'{CURL} -H "Authorization: Bearer {placeholder}" https://api.test/x')
        assert error_of(said)["code"] in ("placeholder_expired", "placeholder_unknown")
        ended = await o.run("alice", f"https_proxy={proxy} {CURL} https://api.test/x")
        assert ended.code == 7  # nobody listens there
        assert not o.upstream.arrived


async def test_a_box_that_is_stopped_has_no_way_out_and_one_that_is_started_again_has() -> None:
    async with outside() as o:
        await o.allow("alice")
        await o.said("alice", f"{CURL} https://api.test/x")
        box = await o.box("alice")
        assert o.egress.facts(box)["worker"]
        await o.engine.boxes.stop(o.actors["alice"], "default", "alice")
        assert not o.egress.facts(box)["open"]
        await o.said("alice", f"{CURL} https://api.test/y")
        assert [each.line for each in o.upstream.arrived] == [b"GET /x HTTP/1.1", b"GET /y HTTP/1.1"]


async def test_a_server_that_starts_anew_keeps_ports_and_placeholders_of_what_runs() -> None:
    async with outside() as o:
        await o.secret("alice")
        await o.allow("alice")
        script = (
            f'while ! test -e go; do sleep 0.05; done; {CURL} -H "Authorization: Bearer $GH_TOKEN" https://api.test/z'
        )
        await o.start("alice", f"({script}) > out 2>&1; touch done", output="stream")
        await asyncio.sleep(0.5)  # ledger.DELAY and a commit
        await o.restart()
        box = await o.box("alice")
        assert o.egress.facts(box)["invocations"] == 1
        await o.said("alice", "touch go; while ! test -e done; do sleep 0.05; done")
        assert o.upstream.arrived, await o.said("alice", "cat out")
        assert o.upstream.arrived[0].value("authorization") == b"Bearer " + SECRET
        await eventually(lambda: o.egress.facts(box)["invocations"] == 0, "the end of the command of before")


async def test_holds_are_answered_yes_no_and_never() -> None:
    async with outside(bounds=Bounds(hold=1.5)) as o:
        await o.allow("alice", answer=Verdict.ASK)
        user = o.actors["alice"].user
        assert user is not None

        async def asked(path: str) -> tuple[Command, Hold]:
            command = await o.start("alice", f"{CURL} https://api.test{path}")
            await eventually(lambda: any(each.waiting for each in o.egress.holds.of([user.id])), "a question")
            return command, o.egress.holds.of([user.id])[-1]

        async def ended(command: Command) -> str:
            outcome = await command.outcome()
            assert outcome.stdout is not None
            return outcome.stdout.head.decode()

        command, hold = await asked("/once")
        assert (hold.rule.host, hold.rule.methods, hold.rule.paths) == ("api.test", frozenset({"GET"}), ("/once",))
        await o.egress.holds.answer(o.actors["alice"], hold.id, "once")
        assert "GET /once" in await ended(command)
        command, hold = await asked("/no")
        await o.egress.holds.answer(o.actors["alice"], hold.id, "deny")
        assert error_of(await ended(command))["code"] == "denied"
        command, hold = await asked("/never")
        assert error_of(await ended(command))["code"] == "ask_pending"
        await o.egress.holds.answer(o.actors["alice"], hold.id, "always")  # late: the rule holds from now on
        assert "GET /never" in await o.said("alice", f"{CURL} https://api.test/never")
        assert [each.line for each in o.upstream.arrived] == [b"GET /once HTTP/1.1", b"GET /never HTTP/1.1"]
        assert [row["details"]["said"] for row in await o.audited("egress.answer")] == ["once", "deny", "always"]


async def test_a_write_is_in_the_audit_before_it_leaves_and_its_release_too() -> None:
    async with outside() as o:
        await o.secret("alice")
        await o.allow("alice")
        await o.said("alice", f'{CURL} -X POST -d x -H "Authorization: Bearer $GH_TOKEN" https://api.test/w')
        await until(lambda: o.audited_in(Lane.INTENT), 2)  # how it ended is told when it has ended
        rows = await o.store.audit.page({Lane.INTENT, Lane.RELEASE}, None, None, 10)
        assert [row["action"] for row in rows] == ["outcome", "release", "egress.request"]
        intent = rows[2]["details"]
        assert (intent["method"], intent["path"], intent["host"]) == ("POST", "/w", "api.test")
        assert intent["command"].startswith("x/") and rows[0]["details"]["outcome"] == "done"
        assert SECRET.decode() not in str(rows)


async def test_what_knows_of_no_proxy_is_caught_all_the_same() -> None:
    """By the synthetic resolver and nft; the control is a name that no rule lets through."""
    async with outside() as o:
        await o.secret("alice")
        await o.allow("alice")
        bare = f"env -u https_proxy -u HTTPS_PROXY -u ALL_PROXY -u all_proxy {CURL}"
        await o.said("alice", f'{bare} -H "Authorization: Bearer $GH_TOKEN" https://api.test/t')
        assert o.upstream.arrived[0].value("authorization") == b"Bearer " + SECRET
        ended = await o.run("alice", f"{bare} https://other.test/t")
        assert ended.code == 6  # such a name is not there
        box = await o.box("alice")
        await eventually(lambda: o.egress.facts(box)["denials"] >= 1, "the denial is counted")


async def test_what_the_rules_would_say_is_what_they_say() -> None:
    async with outside() as o:
        await o.allow("alice", methods=frozenset({"GET"}))
        alice = o.actors["alice"]
        for method, answer in (("GET", Verdict.ALLOW), ("POST", Verdict.DENY)):
            tried = await o.engine.egress.test(alice, "default", "alice", method, "https://API.test:443/a?token=x")
            assert tried.explanation.decision.answer is answer
            said = await o.said("alice", f"{CURL} -X {method} https://api.test/a")
            assert ("error" in said) == (answer is Verdict.DENY)
        with pytest.raises(Invalid):
            await o.engine.egress.test(alice, "default", "alice", "GET", "https://user@api.test/")
