"""The JSON of rules, explanations and the log of the way out. No behaviour here."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from ringfence.host.web.shapes import Request, Text
from ringfence.host.web.shapes_audit import TrafficShape
from ringfence.host.web.shapes_secrets import BindingShape, LongText, Port, Short

Bytes = Annotated[int, Field(ge=0, le=1 << 40)]


class NewRule(Request):
    """A host, or a preset such as `git-read:github.com`."""

    answer: Literal["allow", "deny", "ask"]
    host: Short = Field(default="", description="a name, *.NAME (one label), **.NAME (any number), * or a CIDR")
    preset: Short = ""
    ports: Annotated[list[Port], Field(max_length=16)] | None = Field(
        default=None, description="null: 443, with `plain` 80 too; of a deny every port"
    )
    methods: list[Short] = Field(default_factory=list, max_length=32)
    paths: list[LongText] = Field(default_factory=list, max_length=64)
    query: list[Annotated[list[Short], Field(min_length=2, max_length=2)]] = Field(default_factory=list, max_length=8)
    plain: bool = Field(default=False, description="http without TLS too")
    websocket: bool = False
    passthrough: bool = Field(default=False, description="by name alone, unread: no methods, paths or credentials")
    forward_literal: bool = False
    up_bytes: Bytes | None = None
    down_bytes: Bytes | None = None
    note: Short = ""


class RuleShape(BaseModel):
    id: str
    layer: str
    answer: str
    host: str
    ports: list[int]
    methods: list[str]
    paths: list[str]
    query: list[list[str]]
    plain: bool
    mode: str
    websocket: bool
    forward_literal: bool
    up_bytes: int
    down_bytes: int
    note: str


class RuleList(BaseModel):
    rules: list[RuleShape]
    lint: list[str] = Field(description="what surely does not do what was meant")


class NewTest(Request):
    method: Short
    url: Annotated[Text, Field(max_length=9000)]


class Canonical(BaseModel):
    """What was asked for, as the rules see it; without the query."""

    host: str
    port: int
    tls: bool
    method: str
    path: str
    websocket: bool


class LayerShape(BaseModel):
    layer: str
    answer: str | None
    rule: RuleShape | None


class CredentialUse(BaseModel):
    name: str
    binding: BindingShape


class TestShape(BaseModel):
    answer: str = Field(description="allow, deny, ask")
    why: str
    mode: str
    canonical: Canonical
    connection: str = Field(description="what is known from host and port alone")
    layers: list[LayerShape]
    rule: RuleShape | None = Field(description="the one that decided; null: nobody named it")
    missing: RuleShape | None = Field(description="the rule that would let exactly this through")
    credentials: list[CredentialUse]
    notes: list[str]


class LogRow(BaseModel):
    """A row of the audit, without its place in a chain."""

    id: str
    at: datetime
    lane: str
    actor: dict[str, Any] | None
    action: str
    subject: str
    ref: str | None
    details: dict[str, Any]


class LogShape(BaseModel):
    traffic: list[TrafficShape]
    rows: list[LogRow] = Field(description="releases, intents, findings, changes")
    dropped: int = Field(description="traffic of all boxes that is forgotten")
    until: datetime = Field(
        description="give it as `since`, and nothing comes twice; a row that was being written is in neither: to miss none, "
        "ask from some seconds before it and leave out the ids that you have"
    )
    more: bool = Field(description="older ones were left out")
