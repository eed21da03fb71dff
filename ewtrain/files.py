"""JSON in files, and what is wrong with it as faults with a place."""

from __future__ import annotations

import difflib
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ewtrain.errors import DataError, Fault


class RepeatedKeys(dict[str, Any]):
    """A JSON object that held a key twice; `keys_twice` names them."""

    keys_twice: tuple[str, ...] = ()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    seen: set[str] = set()
    repeated = RepeatedKeys(made)
    repeated.keys_twice = tuple(dict.fromkeys(k for k, _ in pairs if k in seen or seen.add(k)))  # type: ignore[func-returns-value]
    return repeated


def _decompress(path: Path) -> bytes:
    raw = path.read_bytes()
    if path.name.endswith(".gz"):
        return gzip.decompress(raw)
    if path.name.endswith(".zst"):
        return _unzstd(raw)
    return raw


def _unzstd(raw: bytes) -> bytes:
    """Return the content of every zstd frame; a cut frame is an EOFError, not a short text."""
    import zstandard

    parts: list[bytes] = []
    while raw:
        frame = zstandard.ZstdDecompressor().decompressobj()
        parts.append(frame.decompress(raw))
        if not frame.eof:
            raise EOFError
        raw = frame.unused_data
    return b"".join(parts)


def read_json(path: Path) -> Any:
    """Return the JSON of a file (`.gz` and `.zst` too); DataError says why it is none, as its one fault."""
    try:
        raw = _decompress(path)
    except IsADirectoryError:
        raise _bad(path, "is a folder", "Name a file in it, or the folder to `ewtrain build`") from None
    except EOFError:
        raise _bad(path, "the compressed file is cut off", "Fetch or write it again") from None
    except (OSError, zlib.error) as error:  # gzip.BadGzipFile is an OSError
        why = getattr(error, "strerror", None) or error
        raise _bad(path, f"cannot be read ({why})", "Fetch or write it again") from None
    except Exception as error:
        if type(error).__name__ != "ZstdError":
            raise
        raise _bad(path, f"not a zstd file ({error})", "Fetch or write it again") from None
    if not raw.strip():
        raise _bad(path, "the file is empty", "Fetch or write it again")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise _bad(path, f"not UTF-8 (byte {byte:#04x} at {error.start})", "Convert it to UTF-8") from None
    start = text.lstrip()[:200].lower()
    if start.startswith(("<!doctype", "<html", "<?xml", "<head", "<body")):
        raise _bad(path, f"a web page, not JSON (it starts with {start[:15]!r})", "Download the file again")
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        cut = "; the file seems cut off" if error.pos >= len(text.rstrip()) - 1 else ""
        where = f"line {error.lineno}, column {error.colno}"
        raise _bad(path, f"not JSON: {error.msg} at {where}{cut}", "Write it again") from None
    except RecursionError:
        raise _bad(path, "JSON nested too deeply to be one of ours", "Write it again") from None
    except ValueError as error:  # an integer of thousands of digits
        raise _bad(path, f"not JSON of ours: {error}", "Write it again") from None


def _bad(path: Path, wrong: str, right: str) -> DataError:
    fault = Fault(str(path), "", wrong, right)
    return DataError(str(fault), [fault])


DATASET_MANIFEST = "manifest.json"


def dataset_manifest(folder: Path) -> Path:
    """Return the manifest of a finished dataset folder; DataError where there is none."""
    path = folder / DATASET_MANIFEST
    if not path.is_file():
        raise DataError(
            f"{folder}: no {DATASET_MANIFEST}; this is no finished build. Run `ewtrain build` first."
        )
    return path


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file so that a reader sees the old one or the new one, never a part."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    sync(partial)
    partial.replace(path)


def sync(path: Path) -> None:
    """Bring a file's content to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def file_hash(path: Path) -> str:
    """Return a file's SHA-256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _dotted(location: Iterable[str | int]) -> str:
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    return path


def brief(value: Any) -> str:
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def shape_faults(error: ValidationError, file: str, model: type[BaseModel]) -> list[Fault]:
    """Return one fault for each place where a pydantic model refused the data."""
    keys = sorted(_keys_of(model))
    faults = []
    for item in error.errors(include_url=False):
        path, kind, last = _dotted(item["loc"]), item["type"], str(item["loc"][-1]) if item["loc"] else ""
        if kind == "missing":
            faults.append(Fault(file, path, "is missing", "Add it"))
        elif kind == "extra_forbidden":
            near = [key for key in difflib.get_close_matches(last, keys, n=2) if key != last]
            right = "Remove it"
            if last in keys:
                right = "It belongs elsewhere: see docs/contract.md"
            elif near:
                right = f"Did you mean {near[0]!r}?"
            faults.append(Fault(file, path, "is no key of the format", right))
        else:
            faults.append(
                Fault(file, path, f"found {brief(item['input'])}", item["msg"].removeprefix("Value error, "))
            )
    return faults


def _keys_of(model: type[BaseModel], seen: set[type] | None = None) -> set[str]:
    seen = seen if seen is not None else set()
    if model in seen:
        return set()
    seen.add(model)
    keys = set(model.model_fields)
    for info in model.model_fields.values():
        for inner in _models_in(info.annotation):
            keys |= _keys_of(inner, seen)
    return keys


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models_in(argument)
