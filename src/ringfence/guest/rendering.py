"""How a message of the thread is put to the model. Pure.

    alice: please look at this          the author, whose name comes from the host, and the text as it is
    > bob: yes, do it                   a line of the text that could be taken for another's message, marked as a quote
    [attached: notes.txt, 12 bytes, in your box]        put there by us, one line for each file

Each message of a person is one message of role `user`; what is of role `system` is ours, `assistant` is the model's own.
An author's words must never get out of their message.
"""

from ringfence.guest.plain_json import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""What str.splitlines takes for the end of a line; a model may take any of them for one."""
_BLANKS = "[ \t\u00a0\u1680\u2000-\u200f\u202f\u205f-\u2064\u3000\ufeff]*"  # what shows as nothing, in front of a name
_NOTE = r"\[\s*attached\s*:"


def chat(role: str, text: str) -> "dict[str, Any]":
    """Fields of wire.messages.ChatMessage."""
    return {"role": role, "text": text, "tool_calls": [], "tool_call_id": None}


def names_of(messages: "Iterable[dict[str, Any]]", actor: str) -> list[str]:
    """Whose words a line could be mistaken for."""
    return sorted({actor, *(str(message["author"]) for message in messages)})


def spoken(message: "dict[str, Any]", names: "Sequence[str]", actor: str) -> "dict[str, Any]":
    """`message`: fields of wire.messages.ThreadMessage. `actor`: whose box this is."""
    if message["role"] == "agent":
        return chat("assistant", message["text"])
    author = message["author"]
    text = f"{author}: {_quoted(message['text'], names)}"
    return chat("user", "\n".join([text, *_notes(message.get("attachments", ()), author, actor)]))


def _quoted(text: str, names: "Sequence[str]") -> str:
    """The first line stands behind the author's name already; in later ones a name or a note of ours is a quote."""
    if not any(sign in text for sign in _BREAKS):
        return text
    import re  # 5 ms, which most messages do without

    known = "|".join(re.escape(name) for name in names)
    return re.sub(rf"([{_BREAKS}])(?={_BLANKS}(?:(?:{known}){_BLANKS}[:\uff1a]|{_NOTE}))", r"\1> ", text, flags=re.I)


def _notes(attachments: "Iterable[dict[str, Any]]", author: str, actor: str) -> list[str]:
    where = "in your box" if author == actor else f"in {author}'s box: not reachable from here"
    return [f"[attached: {_shown(one['path'])}, {one['size']} bytes, {where}]" for one in attachments]


def _shown(path: str) -> str:
    """As it is when that is plain, else as JSON text: a name may hold line breaks, or what looks like the note's end."""
    plain = path.isprintable() and not any(sign in path for sign in '[]",')
    return path if plain else dumps(path)
