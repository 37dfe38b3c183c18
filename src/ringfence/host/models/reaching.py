"""What in a request would make the provider itself fetch or run something. Pure.

A box has one way out, with rules. A provider that opens a URL for it is another one, without: so are searches, hosted
tools and connectors. They are refused unless the operator has said `provider_tools = true` for the upstream. What a
client carries out itself (functions, its own shell) is none of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

_CLIENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {  # types of tools that whoever asks carries out
        "/chat/completions": ("function", "custom"),
        "/responses": ("function", "custom", "local_shell", "apply_patch", "computer_use_preview"),
        "/v1/messages": ("custom", "bash_*", "text_editor_*", "computer_*", "memory_*"),
    }
)
HOSTED = (
    "web_search_options",
    "mcp_servers",
    "container",
    "plugins",  # this and the next three: of servers that speak as OpenAI's do
    "search_parameters",
    "web_search",
    "enable_search",
)
"""An empty object turns each of them on: all that is in it has a default."""
SHARED = ("previous_response_id", "conversation", "prompt", "background")
"""Kept at the provider below the account that all share: another user's would be as good as one's own."""


def reaches(path: str, body: Mapping[str, Any]) -> str:
    """The first such thing, for people; "" when there is none."""
    for name in HOSTED:
        if _said(body.get(name)):
            return name
    clients = _CLIENTS.get(path, ())
    found = (_hosted(one, clients) or _fetched(one) for one in _parts(body))
    return _hosted(body, clients) or next((each for each in found if each), "")


def shares(body: Mapping[str, Any]) -> str:
    """The first field that reaches what is kept at the provider; "" when there is none."""
    named = next((name for name in SHARED if _said(body.get(name))), "")
    return named or next((found for one in _parts(body) if (found := _kept(one))), "")


def _said(value: object) -> bool:
    return value is not None and value is not False and value != []


def _hosted(one: Mapping[str, Any], clients: tuple[str, ...]) -> str:
    """In the middle of a conversation there may be tools too."""
    tools = one.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind is not None and not _is_clients(str(kind), clients):
            return f"a tool of type {str(kind)[:64]}"
    return ""


def _is_clients(kind: str, known: tuple[str, ...]) -> bool:
    return any(kind == one or (one.endswith("*") and kind.startswith(one[:-1])) for one in known)


def _parts(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every object of the conversation, without recursion. Not what is in a call's arguments: they are anything, and
    nobody fetches what stands there."""
    todo = [body.get("messages"), body.get("input"), body.get("system")]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += one
        elif isinstance(one, dict) and one.get("type") != "tool_use":
            yield one
            todo += one.values()


def _fetched(part: Mapping[str, Any]) -> str:
    image = part.get("image_url")
    address = image.get("url") if isinstance(image, dict) else image
    if isinstance(address, str) and not address.lower().startswith("data:"):
        return "an image by URL"
    return "a file by URL" if part.get("file_url") or (part.get("type") == "url" and part.get("url")) else ""


def _kept(part: Mapping[str, Any]) -> str:
    if part.get("type") == "item_reference":
        return "item_reference"
    audio = part.get("audio")  # of an earlier answer, by its number there
    if isinstance(audio, dict) and audio.get("id"):
        return "audio by its id"
    return "file_id" if part.get("file_id") else ""
