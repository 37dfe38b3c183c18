"""Nouns of the kernel to shapes of the API, and bytes to JSON. Pure; adds no facts and holds no authority."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.people import Tenant, Token, User
from ringfence.host.kernel.ports import FileInfo, Kept, Outcome
from ringfence.host.kernel.runs import Step
from ringfence.host.kernel.threads import Message, Thread
from ringfence.host.web import shapes
from ringfence.host.web.ports import RunView
from ringfence.host.web.ports_life import BoxView


def b64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def unb64(text: str, what: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise Invalid(f"{what} is not base64", remedy="send RFC 4648 section 4, with padding") from None


def text_or_b64(name: str, data: bytes) -> dict[str, str]:
    """{name: text} when the bytes are UTF-8, else {name_b64: base64}."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_b64": b64(data)}


def tenant(noun: Tenant) -> shapes.TenantShape:
    return shapes.TenantShape(id=noun.id, name=noun.name, created_at=noun.created_at)


def user(noun: User, models: Mapping[str, Any] | None = None) -> shapes.UserShape:
    return shapes.UserShape(
        id=noun.id,
        name=noun.name,
        tenant=noun.tenant_name,
        kind=noun.kind,
        owner=noun.owner,
        disabled=noun.disabled,
        created_at=noun.created_at,
        models=None if models is None else dict(models),
    )


def _token_fields(noun: Token) -> dict[str, Any]:
    return {
        "id": noun.id,
        "scopes": sorted(noun.scopes),
        "note": noun.note,
        "created_at": noun.created_at,
        "expires_at": noun.expires_at,
        "last_used_at": noun.last_used_at,
    }


def token(noun: Token) -> shapes.TokenShape:
    return shapes.TokenShape(**_token_fields(noun))


def token_made(noun: Token, secret: str) -> shapes.TokenMade:
    return shapes.TokenMade(token=secret, **_token_fields(noun))


def box(view: BoxView) -> shapes.BoxShape:
    plain = ("box", "user", "tenant", "driver", "desired", "observed", "image", "uid", "pids", "memory_bytes")
    more = (
        "image_wanted",
        "image_bound",
        "disk_bytes",
        "disk_limit_bytes",
        "disk_by",
        "disk_full",
        "inodes",
        "inode_limit",
        "disk_problem",
        "started_at",
        "last_active_at",
        "rested_at",
        "quarantine",
        "generation",
    )
    fields = {name: getattr(view, name) for name in (*plain, *more)}
    return shapes.BoxShape(
        sessions=list(view.sessions),
        limits=dict(view.limits),
        effective=dict(view.effective),
        from_next_start=list(view.from_next_start),
        weak=list(view.weak),
        mounted=list(view.mounted),
        injected=list(view.injected),
        egress=dict(view.egress),
        **fields,
    )


def _cut_text(kept: Kept) -> tuple[bytes, int]:
    """Head and tail as one, with a line between them that says what is missing. A character that the cut went
    through is dropped with the rest (at most 3 bytes on each side, RFC 3629), so that a cut never makes text
    invalid."""
    head, tail = kept.head, kept.tail
    if not kept.dropped:
        return head + tail, 0
    lost = 0
    for size in range(1, min(4, len(head) + 1)):
        lead = head[-size]
        if lead >= 0xC0:
            if (2 if lead < 0xE0 else 3 if lead < 0xF0 else 4) > size:
                head, lost = head[:-size], size
            break
        if lead < 0x80:
            break
    rest = len(tail) if len(tail) < 4 else 0  # all of it the end of one character; or no text at all
    start = next((at for at in range(min(4, len(tail))) if tail[at] & 0xC0 != 0x80), rest)
    lost += start
    dropped = kept.dropped + lost
    return head + f"\n[... {dropped} bytes are missing here ...]\n".encode() + tail[start:], dropped


def _kept(name: str, kept: Kept) -> dict[str, Any]:
    data, dropped = _cut_text(kept)
    shaped: dict[str, Any] = dict(text_or_b64(name, data))
    if f"{name}_b64" in shaped and kept.dropped:
        shaped, dropped = {f"{name}_b64": b64(kept.head + kept.tail)}, kept.dropped
    return {**shaped, f"{name}_dropped": dropped}


def outcome(noun: Outcome) -> dict[str, Any]:
    """The --json object of `exec`; limit and use of what ran out with the reason that names it only."""
    shaped: dict[str, Any] = {
        "exit_code": noun.code,
        "signal": noun.signal,
        "reason": noun.reason,
        "message": noun.message,
        "left": list(noun.left),
        "duration_ms": noun.duration_ms,
    }
    if noun.reason == "oom":
        shaped |= {"memory_limit_bytes": noun.memory_limit_bytes, "memory_peak_bytes": noun.memory_peak_bytes}
    elif noun.reason == "disk_full":
        shaped |= {"disk_limit_bytes": noun.disk_limit_bytes, "disk_used_bytes": noun.disk_used_bytes}
    elif noun.reason == "timeout":
        shaped["timeout_seconds"] = noun.timeout_seconds
    if noun.stdout is not None:
        shaped |= _kept("stdout", noun.stdout)
    if noun.stderr is not None:
        shaped |= _kept("stderr", noun.stderr)
    return shaped


def file(info: FileInfo) -> dict[str, Any]:
    shaped: dict[str, Any] = dict(text_or_b64("name", info.name))
    shaped |= {"kind": info.kind, "size": info.size, "mode": f"{info.mode:03o}", "mtime_ns": info.mtime_ns}
    if info.target is not None:
        shaped |= text_or_b64("target", info.target)
    return shaped


def thread(noun: Thread, members: list[str] | None = None) -> shapes.ThreadShape:
    return shapes.ThreadShape(
        id=noun.id,
        name=noun.name,
        parallel=noun.parallel,
        created_at=noun.created_at,
        members=members,
        kept_from=None if members is None else noun.kept_from,
    )


def message(noun: Message) -> shapes.MessageShape:
    return shapes.MessageShape(
        id=noun.id,
        author=noun.author_name,
        agent=noun.author is None,
        text=noun.text,
        cursor=noun.cursor,
        turn=noun.turn,
        created_at=noun.created_at,
        attachments=[shapes.AttachmentShape(path=each.path, size=each.size) for each in noun.attachments],
    )


def _step(noun: Step) -> shapes.StepShape:
    return shapes.StepShape(
        n=noun.n,
        tool=noun.tool,
        effect=noun.effect,
        state=noun.state,
        arguments=noun.arguments,
        result=noun.result,
        begun_at=noun.begun_at,
        ended_at=noun.ended_at,
    )


def run(view: RunView, *, steps: bool) -> shapes.RunShape:
    noun = view.run
    return shapes.RunShape(
        run=noun.id,
        thread=view.thread,
        user=view.user,
        turn=noun.turn,
        box=noun.box,
        state=noun.state,
        reason=noun.reason,
        detail=view.detail,
        epoch=noun.epoch,
        attempts=noun.attempts,
        cancel_requested=noun.cancel_requested,
        created_at=noun.created_at,
        started_at=noun.started_at,
        ended_at=noun.ended_at,
        steps=[_step(each) for each in view.steps] if steps else None,
        models=dict(view.models) if steps and view.models is not None else None,
    )
