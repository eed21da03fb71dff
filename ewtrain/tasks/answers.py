"""Writing and reading JSON answers (contract section 2, "JSON answers")."""

from __future__ import annotations

import json
from typing import Any, Literal

_encode = json.JSONEncoder(ensure_ascii=False).encode

ErrorKind = Literal["not_json", "wrong_shape", "not_allowed"]


class ParseError(Exception):
    """A completion that is no valid answer. `kind`: not_json, wrong_shape, not_allowed."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


def dumps(value: Any) -> str:
    """Return JSON in the one spacing that xgrammar's compact mode produces (", " and ": ", no line breaks)."""
    return _encode(value)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ParseError("wrong_shape", "a key stands twice in one object")
    return made


def _no_constant(name: str) -> Any:
    raise ParseError("not_json", f"{name} is no JSON")


def loads(completion: str) -> Any:
    """Return the JSON of an answer that holds nothing else; ParseError not_json otherwise."""
    try:
        return json.loads(completion.strip(), object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # ValueError: also an integer of thousands of digits
        raise ParseError("not_json", str(error)) from None


def read_object(completion: str, keys: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a JSON object that has exactly `keys`, and maybe some of `optional`."""
    data = loads(completion)
    if not isinstance(data, dict):
        raise ParseError("wrong_shape", f"an object is wanted, not {type(data).__name__}")
    missing = [key for key in keys if key not in data]
    unknown = [key for key in data if key not in keys and key not in optional]
    if missing or unknown:
        raise ParseError("wrong_shape", f"missing keys {missing}, unknown keys {unknown}")
    return data


def read_flag(data: dict[str, Any], key: str) -> bool:
    if not isinstance(data[key], bool):
        raise ParseError("wrong_shape", f"{key} is true or false, not {data[key]!r}")
    return data[key]


def read_text(data: dict[str, Any], key: str) -> str:
    """Return a text field, stripped; blank text and lone surrogates are of the wrong shape."""
    text = data[key]
    if not isinstance(text, str) or not text.strip():
        raise ParseError("wrong_shape", f"{key} is text that is not blank")
    return writable(text.strip())


def writable(text: str) -> str:
    """Return a text that can be written as UTF-8; ParseError for a lone surrogate."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ParseError("wrong_shape", "the answer holds a lone surrogate") from None
    return text


def read_text_or_null(data: dict[str, Any], key: str) -> str | None:
    return None if data[key] is None else read_text(data, key)


def read_text_if(data: dict[str, Any], flag_key: str, key: str) -> str | None:
    """Return the text of `key` where the flag is true; it must be null where the flag is false."""
    if read_flag(data, flag_key):
        return read_text(data, key)
    if data[key] is not None:
        raise ParseError("wrong_shape", f"{key} is null when {flag_key} is false")
    return None


def read_names(names: Any, allowed: list[str], key: str) -> list[str]:
    """Return a non-empty list of distinct allowed names, in the order given."""
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ParseError("wrong_shape", f"{key} is a list of names")
    for name in names:
        if name not in allowed:
            raise ParseError("not_allowed", f"{name!r} may not stand in {key}")
    if len(set(names)) != len(names):
        raise ParseError("not_allowed", f"{key} names someone twice")
    return names
