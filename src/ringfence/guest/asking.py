"""A run's state and its host together: checkpoints, calls of the model, and blobs for what is too large for a frame.

    checkpoint  {"v": 2, "messages": [...], ...}                        small
                {"v": 2, "blob": SHA-256, "tail": [...], ...}           large: `tail` comes after the blob's messages
    blob        the JSON text of a list of messages, in chunks

Each call of the model is made from a state that a new attempt comes to by itself: a loop that dies in it is replaced by
one that makes the same call. A checkpoint is one; so is what follows from it, or from run.start while there is none, by
the results of steps, which the journal has.
"""

import binascii
import time

from ringfence.guest import compaction, toolset
from ringfence.guest.asks import RunFailed, Wound
from ringfence.guest.conversation import OF_RESULTS, VERSION, State
from ringfence.guest.digest import sha256
from ringfence.guest.loop import AskError
from ringfence.guest.plain_json import dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ringfence.guest.asks import Asks

MAX_MODEL_CALLS = 200
MODEL_TRIES = 4  # the first and three more while the model is unavailable
RETRY_SECONDS = 0.5
MAX_INLINE = 480 * 1024
"""Bytes as they travel (a state is JSON in JSON). The host takes 512 KiB, and a run.start of 1 MiB holds it and more."""
MAX_KEYS = 9_000  # of a frame's 10,000
CHUNK = 512 * 1024
MAX_BLOB = 32 * 1024 * 1024


class Asking:
    def __init__(
        self,
        host: "Asks",
        state: State,
        model: str,
        listen: "Callable[[], None]",
        base: "tuple[str, int] | None" = None,
    ) -> None:
        """`listen`: takes the host's news into the state. `base`: blob that begins as the state's messages do, and how
        many of them it has."""
        self.host, self.state = host, state
        self._model, self._listen = model, listen
        self._base = base
        self._mark = _mark(state)

    # --- checkpoints

    def reachable(self) -> bool:
        """Whether a new attempt comes to this state by itself: since the last checkpoint (or run.start, without one)
        there have been results of steps, and nothing else."""
        count, fields = self._mark
        since = self.state.messages[count:]
        return fields == _mark(self.state)[1] and all(message["role"] == "tool" for message in since)

    def rewritten(self) -> None:
        """Messages that were saved are others now."""
        self._base, self._mark = None, (0, "")

    def save(self, boundary: str) -> None:
        """AskError; RunFailed `too_large`."""
        if boundary == "before_model":  # what came since may have changed any message; later it only adds some
            self._base = None
        text, blobs = self._packed()
        self.host.ask("checkpoint.save", boundary=boundary, step=self.state.step, state=text, blobs=blobs)
        self._mark = _mark(self.state)

    def _packed(self) -> tuple[str, list[str]]:
        fields, messages = {"v": VERSION, **self.state.fields()}, self.state.messages
        if self._base is None:
            text = dumps({**fields, "messages": messages})
            if _fits(text):
                return text, []
        blob, count = self._base or (self._put(dumps(messages)), len(messages))
        text = dumps({**fields, "blob": blob, "tail": messages[count:]})
        if not _fits(text):  # what the model said since is large itself
            blob, count = self._put(dumps(messages)), len(messages)
            text = dumps({**fields, "blob": blob, "tail": []})
        self._base = blob, count
        return text, [blob]

    # --- the model

    def generate(self, messages: "Sequence[dict[str, Any]]", tools: "Sequence[dict[str, Any]]") -> "dict[str, Any]":
        """Fields of wire.messages.Generated. One more call of the run. RunFailed. Wound: the soft deadline passed while
        there was no answer; the call has not counted."""
        state = self.state
        if state.calls >= MAX_MODEL_CALLS:
            raise RunFailed("loop_guard", f"{MAX_MODEL_CALLS} calls of the model did not come to an end")
        said: dict[str, Any] = {"messages": list(messages), "blob": None}
        text = dumps(said["messages"])
        if not _fits_inline(text):
            said = {"messages": [], "blob": self._blob_of(messages, text)}
        answer = self._patiently({"model": self._model, "call": state.calls + 1, "tools": list(tools), **said})
        state.calls += 1
        state.scale = compaction.corrected(compaction.total(messages) + spec_tokens(tools), answer.get("usage"))
        return answer

    def _blob_of(self, messages: "Sequence[dict[str, Any]]", text: str) -> str:
        if messages is not self.state.messages:
            return self._put(text)
        if self._base is None or self._base[1] != len(messages):
            self._base = self._put(text), len(messages)
        return self._base[0]

    def _patiently(self, params: "dict[str, Any]") -> "dict[str, Any]":
        """A call that is in flight at the soft deadline is ended by the host as unavailable: so whoever repeats one listens
        first, or it would be made again with tools."""
        wound = self.state.wound
        for left in reversed(range(MODEL_TRIES)):
            try:
                return self.host.ask("model.generate", **params)
            except AskError as error:
                if error.code == "unavailable":
                    self._heard(wound)
                if error.code != "unavailable" or not left:
                    raise RunFailed(error.code, error.message) from None
            time.sleep(RETRY_SECONDS * (MODEL_TRIES - left))
            self._heard(wound)
        raise AssertionError("the last try returns or raises")

    def _heard(self, before: bool) -> None:
        """Wound: since the call was made first."""
        self._listen()
        if self.state.wound and not before:
            raise Wound

    # --- blobs

    def _put(self, text: str) -> str:
        data = text.encode("ascii")
        if len(data) > MAX_BLOB:
            raise RunFailed("too_large", f"the conversation has {len(data)} bytes; the limit is {MAX_BLOB}")
        digest = sha256(data)
        for n, at in enumerate(range(0, len(data), CHUNK)):
            part = binascii.b2a_base64(data[at : at + CHUNK], newline=False).decode("ascii")
            self.host.ask("blob.put", blob=digest, n=n, size=len(data), data_b64=part)
        return digest


def restored(checkpoint: str, host: "Asks") -> "tuple[State, tuple[str, int] | None]":
    """(state, base). RunFailed `incompatible`."""
    try:
        fields = loads(checkpoint)
        if fields.pop("v") != VERSION:
            raise ValueError
        if "blob" not in fields:
            return State(_checked(fields.pop("messages")), fields), None
        base = _checked(loads(_got(fields["blob"], host).decode("ascii")))
        return State(base + fields.pop("tail"), fields), (fields["blob"], len(base))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RunFailed("incompatible", "the checkpoint of this run is not one that this loop can read") from None


def _got(blob: str, host: "Asks") -> bytes:
    """ValueError: it is not what its digest says."""
    data, size = bytearray(), 1
    while len(data) < size:
        chunk = host.ask("blob.get", blob=blob, n=len(data) // CHUNK)
        part, size = binascii.a2b_base64(chunk["data_b64"]), chunk["size"]
        if not part or size > MAX_BLOB:
            raise ValueError
        data += part
    if sha256(bytes(data)) != blob:
        raise ValueError
    return bytes(data)


def _checked(messages: "Any") -> "list[dict[str, Any]]":
    """Roughly: it was ours when it was saved."""
    if not isinstance(messages, list) or len(messages) < 2 or any(len(message) != 4 for message in messages):
        raise ValueError
    return messages


def _mark(state: State) -> tuple[int, str]:
    """How many messages, and every field but those that a step's result changes."""
    fields = {name: value for name, value in state.fields().items() if name not in OF_RESULTS}
    return len(state.messages), dumps(fields)


def spec_tokens(tools: "Sequence[dict[str, Any]]") -> int:
    return compaction.text_tokens(dumps(list(tools))) if tools else 0


def all_tokens(state: State) -> int:
    """Of the next call of the model, as it is now."""
    tools = [] if state.wound else toolset.SPECS
    return compaction.scaled(compaction.total(state.messages) + spec_tokens(tools), state.scale)


def _fits(state: str) -> bool:
    return len(state) <= MAX_INLINE and len(dumps(state)) <= MAX_INLINE


def _fits_inline(messages: str) -> bool:
    """`":` comes after each key and now and then in a text."""
    return len(messages) <= MAX_INLINE and messages.count('":') <= MAX_KEYS
