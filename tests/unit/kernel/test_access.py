"""The table of who may: every cell of it, and the bounds that no row may cross."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ringfence.host.kernel.access import (
    RULES,
    Action,
    Answer,
    Relation,
    decide,
    grantable,
    towards_tenant,
    towards_thread,
    towards_user,
)
from ringfence.host.kernel.ids import TenantId, UserId
from ringfence.host.kernel.people import Actor, Scope, User, UserKind

MADE = datetime(2026, 1, 1, tzinfo=UTC)


def user(name: str, owner: str | None = None, tenant: str = "ten") -> User:
    kind = UserKind.PERSON if owner is None else UserKind.AGENT
    return User(UserId(name), TenantId(tenant), tenant, name, kind, UserId(owner) if owner else None, False, MADE)


ALICE = Actor(user("alice"), False, "token:1")
READER = Actor(user("alice"), False, "token:2", scopes=frozenset({Scope.READ}))
ROOT = Actor(None, True, "socket:0", scopes=frozenset(Scope))
ADMIN = Actor(user("alice"), True, "token:3", scopes=frozenset({Scope.OPERATOR}))

# action: answers for SELF, OWNER, MEMBER, GLASS, OPERATOR, STRANGER, the fourth and fifth being operators. a = allow, h = hide, r = refuse.
TABLE = """
tenant.change      r h h a a r
tenant.see         a h h a a h
user.change        r r h a a h
user.see           a a h a a h
user.removal       r r h a a h
user.export        a r h a a h
token.change       a r h a a h
token.see          a r h a a h
box.see            a a h a a h
box.start          a r h a a h
box.stop           a r h a a h
box.limits         r r h a a h
box.pause          a r h a a h
box.quarantine     r r h a a h
box.snapshot       a r h a a h
box.tree           a r h a a h
box.clone          r r h a a h
box.upgrade        r r h a a h
box.recover        r r h a a h
box.logs           a r h a a h
usage.see          a a h a a h
usage.all          r h h a a r
sweep              r h h a a r
backup             r h h a a r
exec               a r h a a h
files.read         a r h a a h
files.write        a r h a a h
thread.add         a h h a a h
thread.see         h h a a a h
thread.members     h h a a a h
thread.read        h h a a r h
thread.post        h h a r r h
thread.break_glass h h r a a h
run.see            a h a a a h
run.steps          a h r a a h
run.detail         a h r r r h
run.cancel         a h r a a h
run.redrive        a h r a a h
gate.see           a a h a a h
gate.detail        a a h h r h
gate.answer        a a h h r h
status             a h a a a h
audit.read         r h h a a r
secret.see         a a h a a h
secret.change      a r h a a h
secret.mount       a r h h r h
secret.all         r h h a a r
secret.tenant      r h h a a r
egress.see         a a h a a h
egress.change      a a h a a h
egress.layer       r h h a a r
egress.layer_change r h h a a r
vault              r h h a a r
"""
ROWS = {line.split()[0]: line.split()[1:] for line in TABLE.strip().splitlines()}
LETTER = {Answer.ALLOW: "a", Answer.HIDE: "h", Answer.REFUSE: "r"}


def test_every_action_has_a_row() -> None:
    assert set(ROWS) == {action.value for action in Action}
    assert set(RULES) == set(Action)


@pytest.mark.parametrize("action", list(Action))
def test_every_cell(action: Action) -> None:
    got = []
    for relation in Relation:
        actor = ROOT if relation in (Relation.GLASS, Relation.OPERATOR) else ALICE
        got.append(LETTER[decide(action, actor, relation).answer])
    assert got == ROWS[action.value]


@pytest.mark.parametrize("action", list(Action))
def test_a_stranger_is_never_allowed(action: Action) -> None:
    assert decide(action, ALICE, Relation.STRANGER).answer is not Answer.ALLOW


@pytest.mark.parametrize("action", list(Action))
def test_a_token_that_may_only_read_changes_nothing(action: Action) -> None:
    for relation in (Relation.SELF, Relation.OWNER, Relation.MEMBER):
        full, read = decide(action, ALICE, relation).answer, decide(action, READER, relation).answer
        assert read is (Answer.REFUSE if full is Answer.ALLOW and RULES[action].changes else full)
    changing = {action for action in Action if RULES[action].changes}
    assert {Action.EXEC, Action.FILES_WRITE, Action.THREAD_POST, Action.TOKEN_CHANGE} <= changing


def test_what_an_operator_does_to_others_is_recorded_and_ones_own_is_not() -> None:
    for action in (Action.EXEC, Action.FILES_READ, Action.BOX_STOP, Action.BOX_LIMITS, Action.USER_CHANGE):
        assert decide(action, ROOT, Relation.OPERATOR).recorded
    assert not decide(Action.EXEC, ALICE, Relation.SELF).recorded
    assert not decide(Action.EXEC, ADMIN, Relation.SELF).recorded
    as_alice = Actor(user("alice"), False, "socket:0", impersonated=True)
    assert decide(Action.EXEC, as_alice, Relation.SELF).recorded


def test_an_operator_with_a_user_keeps_an_operators_rights_over_it() -> None:
    assert decide(Action.BOX_LIMITS, ADMIN, Relation.SELF).answer is Answer.ALLOW
    assert decide(Action.BOX_LIMITS, ADMIN, Relation.SELF).recorded


def test_relations() -> None:
    robot = user("robot", "alice")
    assert towards_user(ALICE, user("alice")) is Relation.SELF
    assert towards_user(ALICE, robot) is Relation.OWNER
    assert towards_user(ALICE, user("bob")) is Relation.STRANGER
    assert towards_user(ROOT, user("bob")) is Relation.OPERATOR
    assert towards_user(ADMIN, user("alice")) is Relation.SELF
    assert towards_thread(ALICE, "ten", frozenset({"alice"})) is Relation.MEMBER
    assert towards_thread(ALICE, "other", frozenset({"alice"})) is Relation.STRANGER
    assert towards_thread(ALICE, "ten", frozenset({"bob"})) is Relation.STRANGER
    assert towards_thread(ROOT, "ten", frozenset({"alice"})) is Relation.OPERATOR
    assert towards_tenant(ALICE, "ten") is Relation.SELF
    assert towards_tenant(ALICE, "Ten") is Relation.STRANGER
    assert towards_tenant(ROOT, "any") is Relation.OPERATOR


def test_nobody_grants_more_than_he_has() -> None:
    assert grantable(ALICE) == {Scope.USER, Scope.READ}
    assert grantable(READER) == {Scope.READ}
    assert grantable(ROOT) == set(Scope)
