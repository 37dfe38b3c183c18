"""Generation 1 of the wire: what may be said, by whom, how large and how often.

Types only. The guest's PID 1 does not import this module (dataclasses cost it 14 ms of its 13 ms start budget); it
builds the same shapes as dicts, and `tests/contract/test_wire.py` holds both ends against these types. The host
validates everything that arrives against them, strictly and without extra fields.

Envelope, one line of JSON (see `framing`):
    request       {"id": 7, "m": "cmd.spawn", "p": {...}}
    reply         {"re": 7, "ok": {...}}   or   {"re": 7, "err": {"code": "...", "message": "..."}}
    notification  {"m": "cmd.output", "p": {...}}            kept until acknowledged: + "seq": 12
    to or from an agent loop, wrapped by PID 1:   {"run":"<run id>","f":<one of the above>}
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

GENERATION = 1


class Side(StrEnum):
    """Who says it."""

    HOST = "host"
    GUEST = "guest"  # PID 1 of the box
    LOOP = "loop"  # an agent loop, relayed by PID 1


class Kind(StrEnum):
    REQUEST = "request"  # answered once, by a reply
    NOTIFY = "notify"  # not answered
    REPORT = "report"  # a notification that carries a sequence number and is kept until acknowledged


@dataclass(frozen=True, slots=True)
class Hello:
    """The host's first frame on a new connection."""

    generation: int
    box: str  # box id, 16 base32 characters
    host: str  # id of the kernel process, new at each start of it


@dataclass(frozen=True, slots=True)
class LiveRun:
    run: str
    token: str  # 256 bits, base32; proves that this guest was given this run


@dataclass(frozen=True, slots=True)
class LiveCommand:
    key: str
    state: Literal["running", "ended"]


@dataclass(frozen=True, slots=True)
class HelloReply:
    generation: int
    digest: str  # of the guest tree that runs
    guest: str  # id of this PID 1, new at each start of a box
    landlock: int  # ABI version in force for commands and loops, 0 = none
    seccomp: int  # /proc/self/status Seccomp_filters of PID 1
    runs: list[LiveRun]
    commands: list[LiveCommand]
    orphans: list[int]  # pids in the box of live processes that no command owns any more


@dataclass(frozen=True, slots=True)
class CmdSpawn:
    """Start a command, or attach to the one that has this key. A key whose outcome is not yet acknowledged is never
    started twice: running -> attached, ended -> its `cmd.ended` is sent again."""

    key: str  # chosen by the host: `x/<id>` for an exec, `s/<run>/<n>` for a step
    argv_b64: list[str]  # bytes, since arguments need not be UTF-8
    env_b64: dict[str, str]  # name -> base64 of the value; exactly this, nothing is added
    cwd: str  # absolute path in the box
    stdin: Literal["null", "pipe"]
    output: Literal["stream", "keep"]  # stream: cmd.output frames; keep: head and tail in cmd.ended
    timeout_ms: int | None  # while the box is awake; None = none
    grace_ms: int  # between TERM to the group and KILL to the tree


@dataclass(frozen=True, slots=True)
class CmdStarted:
    """The reply to cmd.spawn. A command that could not be started is started and ended with `spawn_failed`."""

    pid: int  # in the box; 0 when it never came to be
    attached: bool


@dataclass(frozen=True, slots=True)
class CmdStdin:
    key: str
    data_b64: str  # <= 48 KiB decoded
    eof: bool


@dataclass(frozen=True, slots=True)
class CmdCredit:
    """Bytes that the sender is ready to take: of output (from the host), of stdin (from the guest)."""

    key: str
    bytes: int


@dataclass(frozen=True, slots=True)
class CmdSignal:
    key: str
    signal: int  # 1..64, to the command's process group


@dataclass(frozen=True, slots=True)
class CmdStop:
    """TERM to the group, then after `grace_ms` KILL to the whole tree."""

    key: str
    grace_ms: int


@dataclass(frozen=True, slots=True)
class Done:
    """The empty reply."""


@dataclass(frozen=True, slots=True)
class CmdOutput:
    key: str
    stream: Literal[1, 2]
    data_b64: str  # <= 48 KiB decoded


@dataclass(frozen=True, slots=True)
class Kept:
    """Head and tail of one stream: at most 64 KiB + 192 KiB."""

    head_b64: str
    tail_b64: str
    total: int  # bytes that the command wrote
    dropped: int  # bytes between head and tail


@dataclass(frozen=True, slots=True)
class CmdEnded:
    """Exactly one for each key. Carries a sequence number."""

    key: str
    code: int | None  # exit status, None when a signal ended it or it never started
    signal: int | None
    reason: Literal["exit", "timeout", "killed", "spawn_failed"]  # killed: by cmd.stop; the host adds oom, box_lost
    message: str  # for spawn_failed: what exec said
    left: list[int]  # pids of live descendants that outlived the command (A10): named, not hidden
    duration_ms: int  # while the box was awake
    stdout: Kept | None  # only for output = keep
    stderr: Kept | None


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file of the author's box."""

    path: str
    size: int  # bytes, when the message was posted


@dataclass(frozen=True, slots=True)
class ThreadMessage:
    role: Literal["user", "agent"]
    author: str  # user name, or the agent's
    text: str
    cursor: int
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run of the same actor made of the thread's messages up to and with `cursor`."""

    cursor: int
    text: str


@dataclass(frozen=True, slots=True)
class RunStart:
    run: str
    token: str
    thread: str
    actor: str
    epoch: int
    summary: Summary | None
    messages: list[ThreadMessage]  # after the summary; the tail, <= 256 KiB, the message of this turn last
    earlier: int  # thread.read from this cursor has messages that neither `messages` nor the summary has; 0 = none
    steers: list[ThreadMessage]  # what the actor said to this turn since it began, oldest first
    checkpoint: str | None  # what the loop saved last, opaque to the host
    next_step: int  # the first step number that the journal does not have an end for
    model: str
    window: int  # tokens that the model takes, its answer included
    tools: list[ToolSpec]  # that the host carries out: to be offered beside the loop's own, begun with effect `host`
    posture: str  # the paragraph that states the real isolation; part of the system prompt


@dataclass(frozen=True, slots=True)
class RunStarted:
    pid: int


@dataclass(frozen=True, slots=True)
class RunCancel:
    run: str
    grace_ms: int


@dataclass(frozen=True, slots=True)
class RunSteer:
    """The actor said something to the turn while it is worked on. PID 1 hands it to the loop as `steer`. It is in the
    store already: a loop that is gone by now, or never reads it, is given it by run.finish or by the next run.start."""

    run: str
    message: ThreadMessage


@dataclass(frozen=True, slots=True)
class RunWindDown:
    """The soft deadline has passed. PID 1 hands it to the loop as `wind_down`."""

    run: str
    seconds: int  # until the run is ended, whatever it does


@dataclass(frozen=True, slots=True)
class BoxResumed:
    """The box stood still until now: PID 1 moves each timer that was set before."""

    pause: str  # which one: said anew, it is not counted twice
    seconds: float


@dataclass(frozen=True, slots=True)
class Steer:
    """PID 1 to a loop."""

    message: ThreadMessage


@dataclass(frozen=True, slots=True)
class WindDown:
    """PID 1 to a loop: come to an end, without new work."""

    seconds: int


@dataclass(frozen=True, slots=True)
class LoopEnded:
    """A loop process is gone. Carries a sequence number."""

    run: str
    code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True)
class Ack:
    seqs: list[int]


@dataclass(frozen=True, slots=True)
class Bye:
    reason: str


@dataclass(frozen=True, slots=True)
class Rewired:
    """PID 1 to a loop: the wire is another one now; an ask that was in flight has ended without an answer: ask again."""


# --- asks of a loop; every one carries the run token ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: Literal["system", "user", "assistant", "tool"]
    text: str
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that the loop offers to the model."""

    name: str
    description: str
    parameters: dict[str, Any]  # JSON Schema of the arguments


@dataclass(frozen=True, slots=True)
class ModelGenerate:
    """The conversation is `messages`, or when it is too large for a frame the JSON text of that list in `blob`."""

    token: str
    model: str
    call: int  # 1, 2, 3, ...: which call of the run it is; a call that is made again has the number of the first
    messages: list[ChatMessage]
    blob: str | None
    tools: list[ToolSpec]


@dataclass(frozen=True, slots=True)
class Usage:
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Generated:
    text: str
    tool_calls: list[ToolCall]
    stop: Literal["end", "tool_calls", "length"]  # length: cut off by the model's own limit
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class StepBegin:
    token: str
    n: int  # 1, 2, 3, ... without gaps
    tool: str
    arguments: dict[str, Any]
    effect: Literal["pure", "idempotent", "local", "host"]  # host: a tool of run.start; its class is the host's to say


@dataclass(frozen=True, slots=True)
class StepBegun:
    """`run`: the loop carries the step out and says step.end. `done`: here is the result, from the journal or because the
    host carried it out, under the key (run, n). `refused`: tell the model why. No answer: the run is parked, and ends."""

    decision: Literal["run", "done", "refused"]
    result: dict[str, Any] | None
    reason: str


@dataclass(frozen=True, slots=True)
class StepEnd:
    token: str
    n: int
    result: dict[str, Any]  # <= 256 KiB as JSON


@dataclass(frozen=True, slots=True)
class CheckpointSave:
    token: str
    boundary: Literal["before_model", "before_effect", "before_gate", "final"]
    step: int  # the last step whose result the state contains
    state: str  # <= 512 KiB, opaque to the host
    blobs: list[str]  # that the state refers to: whole by now, and kept; every other blob of the run is dropped


@dataclass(frozen=True, slots=True)
class RunFinish:
    token: str
    text: str  # <= 256 KiB
    seen: int  # cursor of the last message of the turn that the text answers


@dataclass(frozen=True, slots=True)
class Finished:
    """`steers` empty: the run is over. Else it is not: the actor had said more, the loop takes it up and goes on."""

    steers: list[ThreadMessage]


@dataclass(frozen=True, slots=True)
class RunFail:
    token: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something for the actor who watches, as it happens. Nothing of it is kept."""

    token: str
    text: str  # <= 4 KiB


@dataclass(frozen=True, slots=True)
class ThreadRead:
    """Older messages of the thread, as far as this run may see them: messages and replies, nobody's steps."""

    token: str
    before: int  # cursor
    limit: int  # 1..200


@dataclass(frozen=True, slots=True)
class ThreadPage:
    messages: list[ThreadMessage]  # oldest first, <= 256 KiB of text: the newest below `before`
    more: bool


@dataclass(frozen=True, slots=True)
class ThreadSummarise:
    """Kept for later runs of this actor in this thread, and for nobody else: a loop's words are its actor's own."""

    token: str
    cursor: int  # of the last message that is summarised; before the turn's own
    text: str  # <= 64 KiB


@dataclass(frozen=True, slots=True)
class BlobPut:
    """One chunk of a blob of the run. A chunk that is there already stays."""

    token: str
    blob: str  # SHA-256 of the whole, in hex
    n: int  # 0, 1, 2, ...
    size: int  # bytes of the whole, <= 32 MiB
    data_b64: str  # exactly 512 KiB decoded, the last chunk what is left


@dataclass(frozen=True, slots=True)
class BlobGet:
    token: str
    blob: str
    n: int


@dataclass(frozen=True, slots=True)
class BlobChunk:
    data_b64: str
    size: int  # bytes of the whole


KIB, MIB = 1024, 1024 * 1024
BLOB_CHUNK = 512 * KIB
MAX_BLOB, MAX_RUN_BLOBS = 32 * MIB, 256 * MIB


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    side: Side  # who says it
    kind: Kind
    params: type
    result: type | None
    max_bytes: int  # of the frame
    per_second: int  # sustained, for each box (guest) or run (loop); bursts of twice that
    budget: int  # in the life of a run, 0 = no bound
    effect: Literal["none", "pure", "idempotent", "local"]  # what saying it twice does


def _rows() -> tuple[Method, ...]:
    host, guest, loop = Side.HOST, Side.GUEST, Side.LOOP
    req, note, rep = Kind.REQUEST, Kind.NOTIFY, Kind.REPORT
    return (
        Method("hello", host, req, Hello, HelloReply, 4 * KIB, 10, 0, "idempotent"),
        Method("cmd.spawn", host, req, CmdSpawn, CmdStarted, MIB, 1000, 0, "local"),
        Method("cmd.stdin", host, note, CmdStdin, None, 128 * KIB, 10_000, 0, "none"),
        Method("cmd.signal", host, req, CmdSignal, Done, KIB, 1000, 0, "none"),
        Method("cmd.stop", host, req, CmdStop, Done, KIB, 1000, 0, "idempotent"),
        Method("run.start", host, req, RunStart, RunStarted, MIB, 100, 0, "idempotent"),
        Method("run.cancel", host, req, RunCancel, Done, KIB, 100, 0, "idempotent"),
        Method("run.steer", host, req, RunSteer, Done, MIB, 100, 0, "idempotent"),
        Method("run.wind_down", host, req, RunWindDown, Done, KIB, 100, 0, "idempotent"),
        Method("box.resumed", host, req, BoxResumed, Done, KIB, 100, 0, "idempotent"),
        Method("ack", host, note, Ack, None, 64 * KIB, 10_000, 0, "idempotent"),
        Method("bye", host, note, Bye, None, KIB, 10, 0, "idempotent"),
        Method("cmd.output", guest, note, CmdOutput, None, 128 * KIB, 20_000, 0, "none"),
        Method("cmd.credit", guest, note, CmdCredit, None, KIB, 20_000, 0, "none"),
        Method("cmd.grant", host, note, CmdCredit, None, KIB, 20_000, 0, "none"),
        Method("cmd.ended", guest, rep, CmdEnded, None, MIB, 5000, 0, "idempotent"),
        Method("loop.ended", guest, rep, LoopEnded, None, KIB, 100, 0, "idempotent"),
        Method("rewired", guest, note, Rewired, None, KIB, 100, 0, "none"),
        Method("steer", guest, note, Steer, None, MIB, 100, 0, "idempotent"),
        Method("wind_down", guest, note, WindDown, None, KIB, 100, 0, "idempotent"),
        Method("model.generate", loop, req, ModelGenerate, Generated, MIB, 20, 1000, "pure"),
        Method("step.begin", loop, req, StepBegin, StepBegun, 512 * KIB, 100, 1000, "idempotent"),
        Method("step.end", loop, req, StepEnd, Done, MIB, 100, 1000, "idempotent"),
        Method("checkpoint.save", loop, req, CheckpointSave, Done, MIB, 100, 2000, "idempotent"),
        Method("run.finish", loop, req, RunFinish, Finished, MIB, 10, 200, "idempotent"),
        Method("run.fail", loop, req, RunFail, Done, 64 * KIB, 10, 10, "idempotent"),
        Method("run.event", loop, req, RunEvent, Done, 32 * KIB, 20, 5000, "none"),
        Method("thread.read", loop, req, ThreadRead, ThreadPage, KIB, 20, 500, "pure"),
        Method("thread.summarise", loop, req, ThreadSummarise, Done, 512 * KIB, 5, 50, "idempotent"),
        Method("blob.put", loop, req, BlobPut, Done, MIB, 100, 5000, "idempotent"),
        Method("blob.get", loop, req, BlobGet, BlobChunk, KIB, 100, 5000, "pure"),
    )


METHODS: dict[str, Method] = {row.name: row for row in _rows()}
