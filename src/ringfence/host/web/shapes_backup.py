"""The JSON of backups of the whole installation."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class BackupWish(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    with_key: Annotated[
        bool, Field(description="the key of the vault too: whoever has the file then has every secret")
    ] = False
    snapshots: Annotated[bool, Field(description="copies of trees that people asked for")] = False
    force: Annotated[bool, Field(description="end what is at work in boxes that this host cannot freeze")] = False
