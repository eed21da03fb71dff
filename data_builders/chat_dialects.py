"""A raw chat row, in whatever dialect, to messages that can be trained on (contract section 3).

A row is kept or refused for a reason, never repaired by guessing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ewtrain.chat import Message, Role, TrainOn, assistant, system, user

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
}
TOOL_ROLES = (
    "tool",
    "tool_call",
    "tool_calls",
    "tool_response",
    "tool_result",
    "tool_results",
    "function",
    "function_call",
    "function_response",
    "observation",
    "ipython",
)
MESSAGE_FIELDS = ("messages", "conversations", "conversation")
WEIGHT_FIELDS = ("weight", "loss_weight", "loss")
TOOL_FIELDS = ("tool_calls", "function_call")
# What a row or a message holds beside its text; leaving it out would change what the text answers.
ROW_PARTS = ("images", "image", "videos", "audios")
MESSAGE_PARTS = ("reasoning_content", "thinking", "images", "image")


class Refused(Exception):
    """A row that cannot be trained on: a short reason to count by, and where and why in this row."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class Normalised(NamedTuple):
    messages: list[Message]
    train_on: TrainOn
    notes: list[str]


def normalise(raw: object) -> Normalised:
    """Return a row's messages: one leading system message at most, then user and assistant in turn.

    Reads `messages` (role, content), ShareGPT (`conversations`: from, value) and pairs (`conversation`:
    human, assistant), each with an optional `system` beside it. `notes` names what was changed:
    `system_merged`, `empty_system_dropped`, `trailing_user_turn_cut`, and `tools_ignored` where the row
    lists tools and calls none. Anything else raises `Refused`.
    """
    if not isinstance(raw, dict):
        raise Refused("not_an_object", f"the row is {_kind(raw)}, wanted an object")
    for key in ROW_PARTS:
        if raw.get(key):
            raise Refused("content_part", f"the row has '{key}'; only text can be read")
    notes: list[str] = []
    systems: list[str] = []
    turns: list[Message] = []
    weights: list[int] = []
    system_in_place = True
    for where, role, content, weight in _turns(raw):
        if role == "system":
            if content:
                system_in_place = system_in_place and not systems and not turns
                systems.append(content)
            elif "empty_system_dropped" not in notes:
                notes.append("empty_system_dropped")
            continue
        if not content:
            raise Refused("empty_content", f"{where} says nothing")
        if turns and turns[-1]["role"] == role:
            raise Refused("consecutive_roles", f"{where} is a second {role} turn in a row")
        if role == "assistant":
            if not turns:
                raise Refused("assistant_first", f"{where} is an assistant turn that nothing came before")
            weights.append(weight)
        turns.append(user(content) if role == "user" else assistant(content))
    if not weights:
        raise Refused("no_assistant_turn", "no assistant turn, so nothing to train on")
    if turns[-1]["role"] == "user":
        turns.pop()
        notes.append("trailing_user_turn_cut")
    if systems:
        turns.insert(0, system("\n\n".join(systems)))
        if not system_in_place:
            notes.append("system_merged")
    if raw.get("tools") not in (None, "", "[]", []):
        notes.append("tools_ignored")
    return Normalised(turns, _train_on(weights), notes)


def _turns(raw: dict[str, Any]) -> Iterator[tuple[str, Role, str, int]]:
    """Yield each turn's place in the row, role, stripped content and weight."""
    if raw.get("system") is not None:
        yield "'system'", "system", _content("'system'", raw["system"]), 1
    for field in MESSAGE_FIELDS:
        messages = raw.get(field)
        if messages is not None and messages != []:
            break
    else:
        fields = repr(list(raw))[:80]
        raise Refused("no_messages", f"the row has {fields}, wanted one of {', '.join(MESSAGE_FIELDS)}")
    if not isinstance(messages, list):
        raise Refused("bad_type", f"'{field}' is {_kind(messages)}, wanted a list")
    for i, message in enumerate(messages):
        where = f"{field}[{i}]"
        if not isinstance(message, dict):
            raise Refused("bad_type", f"{where} is {_kind(message)}, wanted an object")
        weight = _weight(where, message)
        for role, content in _said(message):
            yield where, _role(where, role, message), _content(where, content), weight


def _said(message: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Return the (role, content) pairs of a message: one, or several where its keys are the roles."""
    role = _first(message, "role", "from")
    if role is None:
        # In the order of ROLES, the human first: a table's columns may stand in any order.
        pairs = [(key, message[key]) for key in (*ROLES, *TOOL_ROLES) if message.get(key) is not None]
        if pairs:
            return pairs
    return [(role, _first(message, "content", "value"))]


def _role(where: str, role: object, message: dict[str, Any]) -> Role:
    if role is None:
        raise Refused("unknown_role", f"{where} has no role")
    if not isinstance(role, str):
        raise Refused("bad_type", f"{where} has a role that is {_kind(role)}, wanted text")
    name = role.strip().lower()
    if name in TOOL_ROLES:
        raise Refused("tool_role", f"{where} has the role {role!r}")
    if name not in ROLES:
        raise Refused("unknown_role", f"{where} has the role {role[:40]!r}; known are {', '.join(ROLES)}")
    for key in TOOL_FIELDS:
        if message.get(key):
            raise Refused("tool_role", f"{where} has '{key}'")
    for key in MESSAGE_PARTS:
        if message.get(key):
            raise Refused("content_part", f"{where} has '{key}'; only text can be read")
    return ROLES[name]


def _content(where: str, content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, list):
        content = "".join(_part(f"{where} part {i}", part) for i, part in enumerate(content))
    if not isinstance(content, str):
        raise Refused("bad_type", f"{where} says {_kind(content)}, wanted text or a list of text parts")
    if "</think>" in content:
        raise Refused("think_tag", f"{where} contains </think>, before which some chat templates delete")
    try:
        content.encode()
    except UnicodeEncodeError as e:
        raise Refused("lone_surrogate", f"{where} has half a character at {e.start}") from e
    return content.strip()


def _part(where: str, part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise Refused("bad_type", f"{where} is {_kind(part)}, wanted an object")
    if (part.get("type") or "text") != "text":
        raise Refused("content_part", f"{where} is {str(part['type'])[:40]!r}; only text can be read")
    text = _first(part, "text", "value")
    if not isinstance(text, str):
        raise Refused("bad_type", f"the text of {where} is {_kind(text)}, wanted text")
    return text


def _weight(where: str, message: dict[str, Any]) -> int:
    weight = 1
    for key in WEIGHT_FIELDS:
        value = message.get(key)
        if value is None:
            continue
        if not isinstance(value, int | float) or value not in (0, 1):
            raise Refused("message_weight", f"{where} has {key} {str(value)[:20]!r}, wanted 0 or 1")
        weight = min(weight, int(value))
    return weight


def _train_on(weights: list[int]) -> TrainOn:
    """Return what the assistant turns' weights ask for, where `train_on` can say it."""
    if all(weights):
        return "all"
    if weights[-1] and not any(weights[:-1]):
        return "last"
    raise Refused("message_weight", f"assistant turns weigh {weights}; wanted all 1, or the last alone")


def _first(record: dict[str, Any], *keys: str) -> Any:
    """Return the first value that is not null: a table fills the fields of other dialects with nulls."""
    return next((record[key] for key in keys if record.get(key) is not None), None)


def _kind(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "a number"
    kinds = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), f"a {type(value).__name__}")
