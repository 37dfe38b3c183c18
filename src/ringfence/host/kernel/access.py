"""Who may do what, as one table. Pure: decides from facts and never looks anything up.

`decide` is asked with what the actor is to the thing (`Relation`). The answer for what is not allowed is either
`HIDE` (say exactly what would be said if the thing did not exist) or `REFUSE` (the actor may know of it). An operator's
act on what is not his own is recorded; a row says so, not its caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ringfence.host.kernel.people import Actor, Scope, User


class Relation(StrEnum):
    """What the actor is to the thing. The strongest holds: SELF before OWNER before MEMBER before OPERATOR."""

    SELF = "self"  # the thing is the actor's own: user, box, file, token, run
    OWNER = "owner"  # the user is an agent or a project of the actor
    MEMBER = "member"  # of the thread
    GLASS = "break_glass"  # an operator who has opened the thread, recorded and told to its members, for a while
    OPERATOR = "operator"
    STRANGER = "stranger"


class Answer(StrEnum):
    ALLOW = "allow"
    HIDE = "hide"
    REFUSE = "refuse"


class Action(StrEnum):
    TENANT_CHANGE = "tenant.change"  # add, remove
    TENANT_SEE = "tenant.see"
    USER_CHANGE = "user.change"
    USER_SEE = "user.see"
    USER_REMOVAL = "user.removal"  # what a removal would take
    USER_EXPORT = "user.export"  # all that is the user's, in one archive
    TOKEN_CHANGE = "token.change"
    TOKEN_SEE = "token.see"
    BOX_SEE = "box.see"
    BOX_START = "box.start"
    BOX_STOP = "box.stop"
    BOX_LIMITS = "box.limits"
    BOX_PAUSE = "box.pause"  # and resume, archive
    BOX_QUARANTINE = "box.quarantine"  # and release
    BOX_SNAPSHOT = "box.snapshot"  # make, see, remove copies of the tree
    BOX_TREE = "box.tree"  # another tree in its place: reset, restore
    BOX_CLONE = "box.clone"  # a copy for another user
    BOX_UPGRADE = "box.upgrade"
    BOX_RECOVER = "box.recover"
    BOX_LOGS = "box.logs"
    USAGE_SEE = "usage.see"  # what a user's box used
    USAGE_ALL = "usage.all"  # of a tenant
    SWEEP = "sweep"
    BACKUP = "backup"  # of the whole installation
    EXEC = "exec"
    FILES_READ = "files.read"
    FILES_WRITE = "files.write"
    THREAD_ADD = "thread.add"
    THREAD_SEE = "thread.see"  # that it exists, its name and members
    THREAD_MEMBERS = "thread.members"  # change them
    THREAD_READ = "thread.read"  # text
    THREAD_POST = "thread.post"
    THREAD_BREAK_GLASS = "thread.break_glass"
    RUN_SEE = "run.see"
    RUN_STEPS = "run.steps"  # that they happened
    RUN_DETAIL = "run.detail"  # their arguments and results
    RUN_CANCEL = "run.cancel"
    RUN_REDRIVE = "run.redrive"
    GATE_SEE = "gate.see"  # that it is there, whose, and for which tool
    GATE_DETAIL = "gate.detail"  # the call that is asked about
    GATE_ANSWER = "gate.answer"
    STATUS = "status"
    AUDIT_READ = "audit.read"
    SECRET_SEE = "secret.see"  # that it is there, and where it may be used; its value nobody ever sees
    SECRET_CHANGE = "secret.change"  # store, revoke, grant, bind
    SECRET_MOUNT = "secret.mount"  # have it in clear in the box
    SECRET_ALL = "secret.all"  # those of a tenant and its users
    SECRET_TENANT = "secret.tenant"  # change the tenant's own
    EGRESS_SEE = "egress.see"  # rules, what they come to, and what went out
    EGRESS_CHANGE = "egress.change"  # a user's rules
    EGRESS_LAYER = "egress.layer"  # see the rules of a tenant, or of the installation, by themselves
    EGRESS_LAYER_CHANGE = "egress.layer_change"
    VAULT = "vault"


@dataclass(frozen=True, slots=True)
class Rule:
    allowed: frozenset[Relation]
    changes: bool  # a token with `read` alone may not
    recorded: bool  # in the audit, when an operator does it
    told: frozenset[Relation] = frozenset()  # who is refused aloud instead of `not found`


_S, _W, _M, _G, _O = Relation.SELF, Relation.OWNER, Relation.MEMBER, Relation.GLASS, Relation.OPERATOR
_ALL_OTHERS = (_S, Relation.STRANGER)  # of what is the operators', and no secret


def _rule(*allowed: Relation, changes: bool = False, recorded: bool = False, told: tuple[Relation, ...] = ()) -> Rule:
    return Rule(frozenset(allowed), changes, recorded, frozenset(told))


RULES: dict[Action, Rule] = {
    Action.TENANT_CHANGE: _rule(_O, changes=True, recorded=True, told=(_S, Relation.STRANGER)),
    Action.TENANT_SEE: _rule(_S, _O),
    Action.USER_CHANGE: _rule(_O, changes=True, recorded=True, told=(_S, _W)),
    Action.USER_SEE: _rule(_S, _W, _O),
    Action.USER_REMOVAL: _rule(_O, recorded=True, told=(_S, _W)),
    Action.USER_EXPORT: _rule(_S, _O, recorded=True, told=(_W,)),
    Action.TOKEN_CHANGE: _rule(_S, _O, changes=True, recorded=True, told=(_W,)),
    Action.TOKEN_SEE: _rule(_S, _O, told=(_W,)),
    Action.BOX_SEE: _rule(_S, _W, _O),
    Action.BOX_START: _rule(_S, _O, changes=True, recorded=True, told=(_W,)),
    Action.BOX_STOP: _rule(_S, _O, changes=True, recorded=True, told=(_W,)),
    Action.BOX_LIMITS: _rule(_O, changes=True, recorded=True, told=(_S, _W)),
    Action.BOX_PAUSE: _rule(_S, _O, changes=True, recorded=True, told=(_W,)),
    Action.BOX_QUARANTINE: _rule(_O, changes=True, recorded=True, told=(_S, _W)),
    Action.BOX_SNAPSHOT: _rule(_S, _O, changes=True, recorded=True, told=(_W,)),
    Action.BOX_TREE: _rule(_S, _O, changes=True, recorded=True, told=(_W,)),
    Action.BOX_CLONE: _rule(_O, changes=True, recorded=True, told=(_S, _W)),
    Action.BOX_UPGRADE: _rule(_O, changes=True, recorded=True, told=(_S, _W)),
    Action.BOX_RECOVER: _rule(_O, changes=True, recorded=True, told=(_S, _W)),
    Action.BOX_LOGS: _rule(_S, _O, recorded=True, told=(_W,)),
    Action.USAGE_SEE: _rule(_S, _W, _O),
    Action.USAGE_ALL: _rule(_O, told=_ALL_OTHERS),
    Action.SWEEP: _rule(_O, changes=True, recorded=True, told=_ALL_OTHERS),
    Action.BACKUP: _rule(_O, changes=True, told=_ALL_OTHERS),  # each is recorded: engine/life/backups.py
    Action.EXEC: _rule(_S, _O, changes=True, recorded=True, told=(_W,)),
    Action.FILES_READ: _rule(_S, _O, recorded=True, told=(_W,)),
    Action.FILES_WRITE: _rule(_S, _O, changes=True, recorded=True, told=(_W,)),
    Action.THREAD_ADD: _rule(_S, _O, changes=True, recorded=True),
    Action.THREAD_SEE: _rule(_M, _O),
    Action.THREAD_MEMBERS: _rule(_M, _O, changes=True, recorded=True),
    Action.THREAD_READ: _rule(_M, _G, told=(_O,)),  # recorded too when it is read as somebody: engine/as_somebody.py
    Action.THREAD_POST: _rule(_M, changes=True, recorded=True, told=(_O, _G)),
    Action.THREAD_BREAK_GLASS: _rule(_O, changes=True, recorded=True, told=(_M,)),
    Action.RUN_SEE: _rule(_S, _M, _O),
    Action.RUN_STEPS: _rule(_S, _O, told=(_M,)),
    Action.RUN_DETAIL: _rule(_S, told=(_M, _G, _O)),
    Action.RUN_CANCEL: _rule(_S, _O, changes=True, recorded=True, told=(_M,)),
    Action.RUN_REDRIVE: _rule(_S, _O, changes=True, recorded=True, told=(_M,)),
    Action.GATE_SEE: _rule(_S, _W, _O),
    Action.GATE_DETAIL: _rule(_S, _W, told=(_O,)),
    Action.GATE_ANSWER: _rule(_S, _W, changes=True, told=(_O,)),  # every one is recorded: engine/gates.py
    Action.STATUS: _rule(_S, _M, _O),
    Action.AUDIT_READ: _rule(_O, told=_ALL_OTHERS),  # looking at it is no act of its own: it would fill it
    # Whatever changes one of these is recorded, whoever does it: engine/secrets.py, egress_rules.py, vaults.py.
    Action.SECRET_SEE: _rule(_S, _W, _O),
    Action.SECRET_CHANGE: _rule(_S, _O, changes=True, told=(_W,)),
    Action.SECRET_MOUNT: _rule(_S, changes=True, told=(_W, _O)),
    Action.SECRET_ALL: _rule(_O, told=_ALL_OTHERS),
    Action.SECRET_TENANT: _rule(_O, changes=True, told=_ALL_OTHERS),
    Action.EGRESS_SEE: _rule(_S, _W, _O),
    Action.EGRESS_CHANGE: _rule(_S, _W, _O, changes=True),  # the owner too: a yes to a hold may become a rule
    Action.EGRESS_LAYER: _rule(_O, told=_ALL_OTHERS),
    Action.EGRESS_LAYER_CHANGE: _rule(_O, changes=True, told=_ALL_OTHERS),
    Action.VAULT: _rule(_O, changes=True, told=_ALL_OTHERS),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    answer: Answer
    recorded: bool  # the caller writes the audit row before it acts
    why: str  # for people, when it is not allowed


def decide(action: Action, actor: Actor, relation: Relation) -> Verdict:
    rule = RULES[action]
    own = relation in rule.allowed and relation is not _O
    if not own and not (actor.operator and _O in rule.allowed):
        if relation in rule.told:
            return Verdict(Answer.REFUSE, False, f"{_CALLED[relation]} may not do this: {action.value}")
        return Verdict(Answer.HIDE, False, "")
    if rule.changes and not actor.operator and Scope.USER not in actor.scopes:
        return Verdict(Answer.REFUSE, False, "the token may only read")
    return Verdict(Answer.ALLOW, rule.recorded and (not own or actor.impersonated), "")


_CALLED = {
    _S: "a user",
    _W: "an owner",
    _M: "a member",
    _G: "an operator",
    _O: "an operator",
    Relation.STRANGER: "a user",
}


def towards_user(actor: Actor, target: User) -> Relation:
    """What the actor is to a user and to all that belongs to it."""
    if actor.user is not None and actor.user.id == target.id:
        return _S
    if actor.user is not None and target.owner is not None and target.owner == actor.user.id:
        return _W
    return _O if actor.operator else Relation.STRANGER


def towards_thread(actor: Actor, tenant: str, members: frozenset[str]) -> Relation:
    """`tenant`, `members`: ids. A member of another tenant there is not: a thread's members are its tenant's."""
    if actor.user is not None and actor.user.tenant == tenant and actor.user.id in members:
        return _M
    return _O if actor.operator else Relation.STRANGER


def towards_tenant(actor: Actor, tenant_name: str) -> Relation:
    if actor.operator:
        return _O
    return _S if actor.user is not None and actor.user.tenant_name == tenant_name else Relation.STRANGER


def grantable(actor: Actor) -> frozenset[Scope]:
    """The scopes that the actor may put into a new token: never more than it has."""
    if actor.operator:
        return frozenset(Scope)
    return frozenset({Scope.USER, Scope.READ}) & (actor.scopes | {Scope.READ})
