"""`ringfence gate`, `approve`, `deny`: questions that park a run, and their answers.

What is asked is shown whole, dangerous characters as escapes, and with it whether the answer is a wall or advice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ringfence.cli import checks, options, say_it
from ringfence.cli.calls import call
from ringfence.cli.options import As, Json, Tenant
from ringfence.client.errors import Invalid

gate = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Gates: questions that wait for an answer.")

ANSWERS = ("done", "not-done", "again")
HOLD = "hld_"  # how the ids of holds begin
_ASKED = ("gate", "kind", "state", "user", "answerer", "thread", "run", "n", "created_at", "expires_at")
_ANSWERED = (
    ("answer", "answer"),
    ("by", "answered_by"),
    ("via", "answered_via"),
    ("at", "answered_at"),
    ("used", "used_at"),
    ("reason", "reason"),  # why it is closed without an answer, or without a use
)
_ALL = ("open", "allowed", "denied", "expired", "cancelled", "used")
GateId = Annotated[str, typer.Argument(metavar="ID")]
Key = Annotated[str | None, typer.Option("--key", metavar="K", help="The same key and answer: one answer.")]
InDoubt = Annotated[
    str | None,
    typer.Option(
        "--answer",
        metavar="A",
        help="Of a gate in_doubt: done (it was carried out), not-done (it was not, and is not to be), again (carry it out). "
        "Of a gate auth or setup: done (it is mended: look again).",
    ),
]


@gate.command("ls")
def ls(
    everything: Annotated[bool, typer.Option("--all", help="Also those that are answered or closed.")] = False,
    run: Annotated[str | None, typer.Option(metavar="R", help="Of this run only.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=checks.MAX_PAGE, help="At most so many, newest first.")] = 100,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """List the gates that are yours, or yours to answer."""
    states = _ALL if everything or run else ()
    found = call(lambda client: client.gates(states=states, run=run, limit=limit), tenant=tenant, act_as=act_as)
    if json:
        say_it.as_json({"gates": found})
        return
    rows = [
        (
            each["gate"],
            each["kind"],
            each["state"],
            each["user"],
            each["answerer"],
            each["thread"],
            each["tool"],
            each["equal"] or "-",
            "wall" if each["wall"] else "advice",
        )
        for each in found
    ]
    say_it.table(("GATE", "KIND", "STATE", "USER", "ANSWERS", "THREAD", "TOOL", "EQUAL", "MEANS"), rows)


@gate.command("show")
def show(gate_id: GateId, act_as: As = None, tenant: Tenant = "default", json: Json = False) -> None:
    """Show a gate and all of what is asked."""
    found = call(lambda client: client.gate(gate_id), tenant=tenant, act_as=act_as)
    if json:
        say_it.as_json(found)
    else:
        for row in lines(found, options.again(act_as, tenant)):
            say_it.line(row)


@gate.command("approve")
def approve(
    gate_id: GateId,
    answer: InDoubt = None,
    once: Annotated[bool, typer.Option("--once", help="This time only: the default.")] = False,
    always: Annotated[bool, typer.Option("--always", help="Of a hold: also add the rule that is shown.")] = False,
    key: Key = None,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Say yes, once, to exactly what is asked; of another gate what became of it, or that it is mended."""
    if sum((once, always, answer is not None)) > 1:
        raise Invalid("usage", "--once, --always and --answer are three answers", "give one of them")
    if always and not gate_id.startswith(HOLD):
        raise Invalid(
            "usage", "--always is for a gate of kind hold", "a rule of [[policy]] allows other calls for good"
        )
    if answer is not None and answer.replace("_", "-") not in ANSWERS:
        raise Invalid("usage", f"--answer {answer!r} is none of {', '.join(ANSWERS)}", "--answer done")
    _answer(gate_id, answer or ("always" if always else "allow"), key, act_as, tenant, json)


@gate.command("deny")
def deny(gate_id: GateId, key: Key = None, act_as: As = None, tenant: Tenant = "default", json: Json = False) -> None:
    """Say no: the agent is told, and goes on without it."""
    _answer(gate_id, "deny", key, act_as, tenant, json)


def _answer(gate_id: str, answer: str, key: str | None, act_as: str | None, tenant: str, json: bool) -> None:
    checks.key(key)
    found = call(lambda client: client.answer_gate(gate_id, answer, key=key), tenant=tenant, act_as=act_as)
    if json:
        say_it.as_json(found)
        return
    say_it.line(f"gate {say_it.plain(found['gate'])}: {say_it.plain(str(found['answer']))}; {_then(found)}")
    say_it.note(f"  {say_it.plain(found['means'])}")


def _then(found: Mapping[str, Any]) -> str:
    """A gate that was used or closed says nothing of its run, which may be over by now."""
    if found["kind"] == "hold":
        rule = "; the rule is added" if found["answer"] == "always" else ""
        if found["answer"] == "once":
            return "what has waited longest goes out"
        return f"what waited {'is refused' if found['answer'] == 'deny' else 'goes out'}{rule}"
    return "the run goes on" if found["state"] in ("allowed", "denied") else "said before, and this changes nothing"


def lines(found: Mapping[str, Any], as_whom: str = "") -> list[str]:
    """For people: every fact, then the call line by line, which begins with the tool; `as_whom`: options of whoever would
    answer. Safe to show on a terminal."""
    names = _ASKED if found["call"] is not None else (*_ASKED, "tool")
    rows = [f"{name:<11}{say_it.plain(str(found[name]))}" for name in names if found[name] is not None]
    rows += [
        f"{name:<11}{say_it.plain(str(found[field]))}" for name, field in _ANSWERED if found[field] not in (None, "")
    ]
    for name, value in (found["shown"] or {}).items():
        rows.append(f"{say_it.plain(str(name))[:10]:<11}{say_it.plain(str(value))}")
    owed = {name: value for name, value in found["obligations"].items() if value}
    rows += [f"{'owed':<11}{say_it.plain(str(owed))}"] if owed else []
    rows += [f"{'equal':<11}{found['equal']} other open gates ask for the very same call"] if found["equal"] else []
    rows.append(f"{'means':<11}{say_it.plain(found['means'])}")
    if found["call"] is None:
        return [*rows, "what is asked is for the acting user, or its owner, alone"]
    rows += ["", *(say_it.plain(row) for row in str(found["call"]).split("\n"))]
    rows += [f"! shown as an escape: {say_it.plain(odd)}" for odd in found["odd"]]
    return [*rows, "", *how(found, as_whom)]


def how(found: Mapping[str, Any], as_whom: str = "") -> list[str]:
    """What can be done about an open gate. `as_whom`: of `options.again`."""
    if found["state"] != "open":
        return []
    name = say_it.plain(str(found["gate"])) + say_it.plain(as_whom)
    if found["kind"] == "in_doubt":
        return [f"answer: ringfence approve {name} --answer {'|'.join(ANSWERS)}"]
    if found["kind"] == "hold":
        yes = f"ringfence approve {name}"
        return [f"answer: {yes}", f"    or: {yes} --always", f"    or: ringfence deny {name}"]
    done = " --answer done" if found["kind"] in ("auth", "setup") else ""
    return [f"answer: ringfence approve {name}{done}", f"    or: ringfence deny {name}"]
