"""Raw rows of general chat data, out of files and the Hugging Face Hub.

In reports a row is called `file:line` in a text file, `file:index` or `hub/id:index` (from 0) in a table.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from data_builders.chat_dialects import Refused
from data_builders.write import read_rows
from ewtrain.chat import GENERAL
from ewtrain.errors import DataError

FILE_KINDS = ".jsonl, .json (these also .gz or .zst) or .parquet"
_FILE_NAME = re.compile(r"(?P<stem>.*?)(?P<kind>\.jsonl|\.json|\.parquet)(\.gz|\.zst)?", re.IGNORECASE)
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_NAMES = {"allenai/tulu-3-sft-mixture": "tulu3"}
PASS_LOCAL = "Pass a local file or folder of chat rows with --general PATH."
_BATCH_ROWS = 4096


class Source(NamedTuple):
    """What was found. `name` is the rows' source in a dataset; `rows` are (place, raw row), read when asked for.

    A line that is no JSON comes as the `Refused` that says so.
    """

    name: str
    files: list[str]
    ignored_files: list[str]
    rows: Iterator[tuple[str, object]]


def open_source(source: str | Path) -> Source:
    """Return what a local file, a folder of files or a Hub id holds; DataError if it is none of them."""
    if not str(source).strip():
        raise DataError(f"The source of general data is empty. {PASS_LOCAL}")
    path = Path(source)
    if path.is_dir():
        files, ignored = _local_files(path)
        if not files:
            raise DataError(f"{path}: no file in this folder is {FILE_KINDS}. {PASS_LOCAL}")
        names = [file.relative_to(path).as_posix() for file in files]
        rows = (row for file, name in zip(files, names, strict=True) for row in _file_rows(file, name))
        return Source(_source_name(path.resolve().name), names, ignored, rows)
    if path.exists():
        if not _file_kind(path):
            raise DataError(f"{path}: not a kind of file that can be read; wanted {FILE_KINDS}.")
        return Source(_source_name(path.name), [path.name], [], _file_rows(path, path.name))
    if HUB_ID.fullmatch(str(source)) and not _file_kind(path):
        name = HUB_NAMES.get(str(source)) or _source_name(path.name)
        return Source(name, [], [], _hub_rows(str(source)))
    raise DataError(f"{path}: no such file or folder. {PASS_LOCAL}")


def _file_kind(path: Path) -> str | None:
    match = _FILE_NAME.fullmatch(path.name)
    return match["kind"].lower() if match else None


def _source_name(name: str) -> str:
    """Return the name that stands in row ids; `ew` belongs to the rows made from timelines."""
    match = _FILE_NAME.fullmatch(name)
    stem = re.sub(r"[^a-z0-9_-]+", "-", (match["stem"] if match else name).lower()).strip("-")
    return stem if stem not in ("", "ew") else GENERAL


def _local_files(folder: Path) -> tuple[list[Path], list[str]]:
    """Return a folder's data files in order, and the names of the other files; hidden ones are neither."""
    files, ignored = [], []
    for path in sorted(folder.rglob("*"), key=lambda p: p.relative_to(folder).as_posix()):
        relative = path.relative_to(folder)
        if not path.is_file() or any(part.startswith(".") for part in relative.parts):
            continue
        if _file_kind(path):
            files.append(path)
        else:
            ignored.append(relative.as_posix())
    return files, ignored


def _file_rows(path: Path, name: str) -> Iterator[tuple[str, object]]:
    """Yield (place, raw row) of one file that has some; `name` is what the place calls it."""
    readers = {
        ".jsonl": _jsonl_rows,
        ".json": _json_rows,
        ".parquet": lambda file: enumerate(read_rows(file)),
    }
    kind = _file_kind(path) or ""
    empty = True
    try:
        for place, row in readers[kind](path):
            empty = False
            yield f"{name}:{place}", row
    except (OSError, pa.ArrowException, UnicodeDecodeError) as e:
        raise DataError(f"{path}: cannot be read as {kind}: {e}. Download or write the file again.") from e
    if empty:
        raise DataError(f"{path}: the file holds no rows. Write it again, or remove it.")


def _open(path: Path) -> io.BufferedReader:
    # Arrow's stream notices a file that was cut off; zstandard's ends there as if all were well.
    packed = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix.lower())
    return io.BufferedReader(pa.input_stream(os.fspath(path), compression=packed))


def _jsonl_rows(path: Path) -> Iterator[tuple[int, object]]:
    first = True
    with _open(path) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            if first:
                _refuse_html(path, line)
                first = False
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as e:
                yield number, Refused("not_json", f"{e}"[:120])


def _json_rows(path: Path) -> Iterator[tuple[int, object]]:
    """Yield the elements of a file's list, or its values one after another, with the line each begins on."""
    with _open(path) as file:
        data = file.read()
    _refuse_html(path, data)
    decode = json.JSONDecoder().raw_decode
    line, counted = 1, 0
    try:
        text = data.decode("utf-8-sig", "surrogatepass")
        del data
        at = _skip_blank(text, 0)
        is_list = text.startswith("[", at)
        if is_list:
            at = _skip_blank(text, at + 1)
        while at < len(text) and not (is_list and text[at] == "]"):
            # One value at a time: a long list as objects takes many times the memory of its text.
            value, end = decode(text, at)
            line, counted = line + text.count("\n", counted, at), at
            yield line, value
            at = _skip_blank(text, end)
            if is_list and text.startswith(",", at):
                at = _skip_blank(text, at + 1)
            elif is_list and not text.startswith("]", at):
                raise json.JSONDecodeError("Expecting ',' or ']'", text, at)
        if is_list and _skip_blank(text, at + 1) != len(text):
            raise json.JSONDecodeError("Extra data", text, at + 1)
    except (ValueError, RecursionError) as e:
        raise DataError(f"{path}: no JSON: {e}. Mend it; one row a line belongs in a .jsonl file.") from e


def _skip_blank(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _refuse_html(path: Path, start: bytes) -> None:
    if start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"<":
        raise DataError(f"{path}: a web page and no chat rows, perhaps a failed download. Download it again.")


def _hub_rows(hub_id: str) -> Iterator[tuple[str, object]]:
    import datasets  # a second to import, and only needed here

    try:
        dataset = datasets.load_dataset(hub_id, split="train", streaming=False)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as e:
        raise DataError(
            f"{hub_id}: no such file or folder, and the Hugging Face Hub did not give it: {e}. {PASS_LOCAL}"
        ) from e
    index = 0
    for table in dataset.with_format("arrow").iter(batch_size=_BATCH_ROWS):
        for row in table.to_pylist():
            yield f"{hub_id}:{index}", row
            index += 1
    if not index:
        raise DataError(f"{hub_id}: its train split holds no rows. {PASS_LOCAL}")
