"""The JSON of the API as types: what routes take and give, and what the OpenAPI document says. No behaviour here.

Times are ISO 8601 in UTC; sizes are bytes. Requests refuse unknown fields: a misspelt option is an error.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ringfence.host.kernel.ports import Reason


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def _text(value: str) -> str:
    """What every store and every terminal can hold: PostgreSQL takes no NUL, and UTF-8 no lone surrogate."""
    if "\0" in value:
        raise ValueError("text must not have NUL characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("text must be valid UTF-8: a lone surrogate is none") from None
    return value


Text = Annotated[str, AfterValidator(_text)]


class ErrorBody(BaseModel):
    code: str
    message: str
    remedy: str
    details: dict[str, Any]


class ErrorAnswer(BaseModel):
    error: ErrorBody


class HealthAnswer(BaseModel):
    model_config = ConfigDict(extra="allow")
    ok: bool
    version: str


class StatusAnswer(BaseModel):
    model_config = ConfigDict(extra="allow")
    ok: bool
    version: str


# --- people ----------------------------------------------------------------------------------------------------------


class NewTenant(Request):
    name: str


class TenantShape(BaseModel):
    id: str
    name: str
    created_at: datetime


class TenantList(BaseModel):
    tenants: list[TenantShape]


class NewUser(Request):
    name: str
    kind: Literal["person", "agent", "project"] = "person"
    owner: str | None = None


class UserShape(BaseModel):
    id: str
    name: str
    tenant: str
    kind: str
    owner: str | None = Field(description="user id of the person who answers for it")
    disabled: bool
    created_at: datetime
    models: dict[str, Any] | None = Field(None, description="what calls of models used in this period, and the limits")


class UserList(BaseModel):
    users: list[UserShape]


class NewToken(Request):
    scopes: list[Literal["user", "read", "operator"]] = ["user"]
    note: str = ""
    ttl_seconds: float | None = None


class TokenShape(BaseModel):
    id: str
    scopes: list[str]
    note: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


class TokenMade(TokenShape):
    token: str = Field(description="shown this once; only its hash is kept")


class TokenList(BaseModel):
    tokens: list[TokenShape]


# --- boxes and commands ----------------------------------------------------------------------------------------------


class BoxShape(BaseModel):
    box: str
    user: str
    tenant: str
    driver: str
    desired: str
    observed: str
    image: str = Field(description="what its /usr is, or was last: `host:` and a hash, or the id of an image")
    image_wanted: str = Field(description="the image it was given, by name or id; empty: what the settings say")
    image_bound: str = Field(description="what its next start has: `host`, or an id; empty: decided by that start")
    uid: int
    pids: int
    memory_bytes: int
    disk_bytes: int
    disk_limit_bytes: int | None
    disk_by: str
    disk_full: bool
    inodes: int
    inode_limit: int | None
    disk_problem: str
    started_at: datetime | None
    last_active_at: datetime | None
    rested_at: datetime | None = Field(description="since when it is paused, stopped or archived")
    quarantine: str | None = Field(description="why it is in quarantine; null: it is not")
    sessions: list[str]
    limits: dict[str, int]
    effective: dict[str, int] = Field(description="what holds instead of `limits`, where another limit is lower")
    from_next_start: list[str] = Field(
        description="of limits just changed, those that the running box does not have yet"
    )
    generation: int
    weak: list[str]
    mounted: list[str] = Field(description="credentials that its commands have in clear")
    injected: list[str] = Field(description="credentials that any process of it spends by asking their host")
    egress: dict[str, Any] = Field(description="its way out; empty: it has none")


class BoxList(BaseModel):
    boxes: list[BoxShape]


class NewLimits(Request):
    """Only what is to change. Bounds and names are the engine's."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, int]


class NewCommand(Request):
    """`argv` or `argv_b64`; `stdin` or `stdin_b64`; none of the two: /dev/null."""

    argv: list[str] | None = None
    argv_b64: list[str] | None = None
    env: dict[str, str] = {}
    cwd: str | None = None
    timeout: float | None = None
    stdin: str | None = None
    stdin_b64: str | None = None


class StreamCommand(Request):
    """The first frame of a command's WebSocket. `env_b64` is for values that are not UTF-8."""

    argv: list[str] | None = None
    argv_b64: list[str] | None = None
    env: dict[str, str] = {}
    env_b64: dict[str, str] = {}
    cwd: str | None = None
    timeout: float | None = None
    stdin: Literal["null", "pipe"] = "null"
    output: Literal["stream", "keep"] = "stream"


class OutcomeShape(BaseModel):
    """`stdout` or `stdout_b64` (when it is not UTF-8); of a kept stream the first 64 KiB and the last 192 KiB."""

    exit_code: int | None
    signal: int | None
    reason: Reason
    message: str
    left: list[int]
    duration_ms: int
    stdout: str | None = None
    stdout_b64: str | None = None
    stdout_dropped: int | None = None
    stderr: str | None = None
    stderr_b64: str | None = None
    stderr_dropped: int | None = None
    memory_limit_bytes: int | None = None
    memory_peak_bytes: int | None = None
    disk_limit_bytes: int | None = None
    disk_used_bytes: int | None = None
    timeout_seconds: float | None = None


# --- files -----------------------------------------------------------------------------------------------------------


class FileShape(BaseModel):
    """`name` or, when it is not UTF-8, `name_b64`; likewise the target of a symlink. `mode` in octal."""

    name: str | None = None
    name_b64: str | None = None
    kind: Literal["file", "directory", "symlink", "other"]
    size: int
    mode: str
    mtime_ns: int
    target: str | None = None
    target_b64: str | None = None


class FileList(BaseModel):
    entries: list[FileShape]
    next: str | None = Field(description="base64; give it as `after` for the next page")


# --- threads ---------------------------------------------------------------------------------------------------------


class NewThread(Request):
    name: str
    members: list[str] = []
    parallel: bool = False


class ThreadShape(BaseModel):
    id: str
    name: str
    parallel: bool
    created_at: datetime
    members: list[str] | None = Field(default=None, description="names; of one thread only, not in a list")
    kept_from: int | None = Field(
        default=None, description="events before this cursor are no longer kept; of one thread"
    )


class ThreadList(BaseModel):
    threads: list[ThreadShape]


class NewBreakGlass(Request):
    reason: Text = Field(description="is told to the members")


class BreakGlassShape(BaseModel):
    until: datetime = Field(description="when the text is closed to the operator again")


class NewMessage(Request):
    """`steer`: one more message of the actor's own turn that is under way in the lane; queued when there is none."""

    text: Text
    mode: Literal["queue", "steer", "reject"] = "queue"
    key: Text | None = Field(default=None, description="the same key and body: the same turn, for 7 days")
    attachments: list[Text] = Field(default=[], description="paths of files of the author's box, 20 at most")


class AcceptedShape(BaseModel):
    thread: str
    message: str
    turn: str
    run: str
    cursor: int
    repeated: bool
    steered: bool = Field(description="the message joined a turn that was under way")


class AttachmentShape(BaseModel):
    path: str
    size: int


class MessageShape(BaseModel):
    id: str
    author: str
    agent: bool
    text: str
    cursor: int
    turn: str
    created_at: datetime
    attachments: list[AttachmentShape] = []


class MessageList(BaseModel):
    messages: list[MessageShape]


class EventList(BaseModel):
    """Each {"cursor", "kind", "actor", "turn", "run", "body", "at"}; the body as far as the actor may see it."""

    events: list[dict[str, Any]]


class TurnShape(BaseModel):
    turn: str
    thread: str
    state: str
    reason: str
    reply: str | None
    run: str | None
    message: str


class StepShape(BaseModel):
    n: int
    tool: str
    effect: str
    state: str
    arguments: dict[str, Any] | None
    result: dict[str, Any] | None
    begun_at: datetime
    ended_at: datetime | None


class RunShape(BaseModel):
    run: str
    thread: str
    user: str
    turn: str
    box: str | None
    state: str
    reason: str
    detail: str  # of one at work whose server is gone: so, in words
    epoch: int
    attempts: int
    cancel_requested: bool
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    steps: list[StepShape] | None = None
    models: dict[str, Any] | None = None  # what its calls of models used, and the limits


class RunList(BaseModel):
    runs: list[RunShape]
