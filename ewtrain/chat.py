"""A chat turn and a supervised row (contract section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict
from typing_extensions import TypedDict  # pydantic reads typing's only from Python 3.12 on

Adapter = Literal["world_model", "character_agent"]
ADAPTERS: tuple[Adapter, ...] = ("world_model", "character_agent")
GENERAL = "general"

Role = Literal["system", "user", "assistant"]
TrainOn = Literal["all", "last"]


class Message(TypedDict):
    """One chat turn, as chat templates read it."""

    role: Role
    content: str


def system(content: str) -> Message:
    return {"role": "system", "content": content}


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


class Example(BaseModel):
    """One SFT row. `input` is the JSON of the task's typed Input, None for general rows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    task: str
    adapter: Adapter
    source: str
    book_id: str | None = None
    scene: int | None = None
    segment: int | None = None
    actors: list[str] | None = None
    wording: int | None = None
    messages: list[Message]
    train_on: TrainOn = "all"
    input: str | None = None


def supervised_turns(messages: Sequence[Message], train_on: TrainOn) -> list[int]:
    """Return the indices of the assistant turns that carry loss under `train_on`."""
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    return turns[-1:] if train_on == "last" else turns
