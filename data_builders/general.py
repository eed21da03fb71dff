"""General chat data to normalised rows, each kept once, and what an adapter draws (contract section 3).

A row is kept or refused for a reason, never repaired by guessing, and every row is counted. In reports a row
is called `file:line` in a text file, `file:index` or `hub/id:index` (from 0) in a table.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ewtrain.chat import GENERAL, Adapter, Example, Message, Role, TrainOn, assistant, system, user
from ewtrain.errors import DataError

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

FILE_KINDS = ".jsonl, .json (these also .gz or .zst) or .parquet"
_FILE_NAME = re.compile(r"(?P<stem>.*?)(?P<kind>\.jsonl|\.json|\.parquet)(\.gz|\.zst)?", re.IGNORECASE)
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_NAMES = {"allenai/tulu-3-sft-mixture": "tulu3"}
PASS_LOCAL = "Pass a local file or folder of chat rows with --general PATH."

_canonical_json = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode
_SCHEMA = pa.schema(
    [
        ("digest", pa.string()),
        ("conversation", pa.uint64()),
        ("train_on", pa.string()),
        ("messages", pa.large_string()),
    ]
)
_BATCH = 4096
_STRICT_LISTED = 20


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


class GeneralRow(NamedTuple):
    """One kept row. `digest` is the first 16 hex digits of the sha256 of its messages' canonical JSON."""

    source: str
    digest: str
    messages: list[Message]
    train_on: TrainOn


class Draw(NamedTuple):
    """Pairs (pool index, k), k counting the repeats of that row from 0.

    `passes` counts the passes begun over the training rows, `shortfall` the validation rows that are lacking,
    `set_aside` the rows left out of train because validation holds the same conversation.
    """

    train: list[tuple[int, int]]
    validation: list[tuple[int, int]]
    passes: int
    shortfall: int
    set_aside: int = 0


# --- one row ---------------------------------------------------------------------------------------------


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


# --- files and the Hub -----------------------------------------------------------------------------------


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
    """Yield (row id, row) of one file; a line that is no JSON comes as the `Refused` that says so."""
    readers = {".jsonl": _jsonl_rows, ".json": _json_rows, ".parquet": _parquet_rows}
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


def _parquet_rows(path: Path) -> Iterator[tuple[int, object]]:
    index = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_BATCH):
            for row in batch.to_pylist():
                yield index, row
                index += 1


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
    for table in dataset.with_format("arrow").iter(batch_size=_BATCH):
        for row in table.to_pylist():
            yield f"{hub_id}:{index}", row
            index += 1
    if not index:
        raise DataError(f"{hub_id}: its train split holds no rows. {PASS_LOCAL}")


# --- the pool --------------------------------------------------------------------------------------------


class GeneralPool:
    """The kept rows of one source, on disk; `pool[i]` reads one.

    `report` is JSON: `source`, `files`, `ignored_files`, `read`, `kept`, `digest` (over the kept rows in
    order), `notes` {note: count}, over every readable row, repeated ones included, and `refused` {reason:
    {`count`, `examples`, `details`}} with the first three rows of each. `read` is `kept` plus all refused.

    `conversations[i]` is a hash of row i without its system message: the unit that `draw` holds out.
    """

    def __init__(self, path: Path, report: dict[str, Any]) -> None:
        self.path = path
        self.report = report
        self.source: str = report["source"]
        table = pa.ipc.open_file(pa.memory_map(os.fspath(path))).read_all()
        self._digest, self._train_on, self._messages = table["digest"], table["train_on"], table["messages"]
        self.conversations = table["conversation"].to_numpy()

    def __len__(self) -> int:
        return len(self._digest)

    def __getitem__(self, index: int) -> GeneralRow:
        return GeneralRow(
            self.source,
            self._digest[index].as_py(),
            json.loads(self._messages[index].as_py()),
            self._train_on[index].as_py(),
        )

    @classmethod
    def read(
        cls,
        source: str | Path,
        work_dir: Path,
        *,
        strict: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> GeneralPool:
        """Return the pool of a local file, a folder of files or a Hub id; `work_dir` gets its one file.

        A refused row is counted and the others load; `strict` makes it an error. A row whose normalised
        messages were seen before is refused as `duplicate`, which `strict` allows. `progress` is told the
        number of rows read so far.
        """
        path = Path(source)
        files: list[Path] = []
        ignored: list[str] = []
        rows: Iterator[tuple[str, object]]
        if path.is_dir():
            name = _source_name(path.resolve().name)
            files, ignored = _local_files(path)
            if not files:
                raise DataError(f"{path}: no file in this folder is {FILE_KINDS}. {PASS_LOCAL}")
            rows = (row for file in files for row in _file_rows(file, file.relative_to(path).as_posix()))
        elif path.exists():
            name = _source_name(path.name)
            if not _file_kind(path):
                raise DataError(f"{path}: not a kind of file that can be read; wanted {FILE_KINDS}.")
            files = [path]
            rows = _file_rows(path, path.name)
        elif HUB_ID.fullmatch(str(source)) and not _file_kind(path):
            name = HUB_NAMES.get(str(source)) or _source_name(path.name)
            rows = _hub_rows(str(source))
        else:
            raise DataError(f"{path}: no such file or folder. {PASS_LOCAL}")

        work_dir.mkdir(parents=True, exist_ok=True)
        out = work_dir / f"{name}.arrow"
        # An earlier pool may still have `out` mapped: a file is put in its place, never written over.
        partial = out.with_suffix(".partial")
        try:
            report = _write_rows(rows, partial, strict, progress)
            os.replace(partial, out)
        finally:
            partial.unlink(missing_ok=True)
        base = path if path.is_dir() else path.parent
        names = [file.relative_to(base).as_posix() for file in files]
        return cls(out, {"source": name, "files": names, "ignored_files": ignored, **report})


def _write_rows(
    rows: Iterator[tuple[str, object]], path: Path, strict: bool, progress: Callable[[int], None] | None
) -> dict[str, Any]:
    """Write what `normalise` keeps, each content once, and return the counts."""
    read = kept = 0
    notes: Counter[str] = Counter()
    refused: dict[str, dict[str, Any]] = {}
    faults: list[str] = []
    # Ids are made of these 16 digits, so it is by them, not by the text, that rows must differ.
    seen: set[int] = set()
    content_hash = hashlib.sha256()
    batch: list[tuple[str, int, TrainOn, str]] = []
    with pa.OSFile(os.fspath(path), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:

        def flush() -> None:
            columns = zip(*batch, strict=True) if batch else [()] * len(_SCHEMA)
            writer.write_batch(pa.record_batch([list(column) for column in columns], schema=_SCHEMA))
            batch.clear()

        for row_id, raw in rows:
            read += 1
            if progress and read % 10_000 == 0:
                progress(read)
            try:
                if isinstance(raw, Refused):
                    raise raw
                row = normalise(raw)
                notes.update(row.notes)
                text = _canonical_json(row.messages)
                digest = _digest(text)
                if (number := int(digest, 16)) in seen:
                    raise Refused("duplicate", f"the same messages as an earlier row, {digest}")
            except Refused as e:
                entry = refused.setdefault(e.reason, {"count": 0, "examples": [], "details": []})
                entry["count"] += 1
                if entry["count"] <= 3:
                    entry["examples"].append(row_id)
                    entry["details"].append(e.detail)
                if e.reason != "duplicate" and len(faults) < _STRICT_LISTED:
                    faults.append(f"  {row_id}: {e}")
                continue
            seen.add(number)
            content_hash.update(digest.encode())
            conversation = number
            if row.messages[0]["role"] == "system":
                conversation = int(_digest(_canonical_json(row.messages[1:])), 16)
            batch.append((digest, conversation, row.train_on, text))
            kept += 1
            if len(batch) == _BATCH:
                flush()
        flush()
    if progress:
        progress(read)
    if strict and faults:
        bad = sum(entry["count"] for reason, entry in refused.items() if reason != "duplicate")
        listed = f"the first {len(faults)} of them" if bad > len(faults) else "all of them"
        raise DataError(
            "\n".join([f"{bad} of {read} rows cannot be used; {listed}:", *faults])
            + "\nMend or remove these rows, or read without strict to leave them out and count them."
        )
    return {
        "read": read,
        "kept": kept,
        "digest": content_hash.hexdigest(),
        "notes": dict(sorted(notes.items())),
        "refused": dict(sorted(refused.items())),
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# --- what an adapter draws -------------------------------------------------------------------------------


def draw(
    pool_size: int,
    num_train: int,
    num_validation: int,
    *,
    seed: int,
    adapter: str,
    conversations: npt.NDArray[np.uint64] | None = None,
) -> Draw:
    """Return the rows an adapter trains and validates on, drawn from the pool without replacement.

    A pool that is too small gives at most a tenth of its rows to validation (half up, at least one of two),
    none of them twice and none to train; train then goes through the rest in passes, each newly shuffled.
    Given the pool's `conversations`, no row trains on a conversation that validation holds.
    """
    key = hashlib.sha256(json.dumps([seed, adapter]).encode()).digest()
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(key)))
    order = rng.permutation(pool_size)
    held_out = num_validation
    if pool_size < num_train + num_validation:
        tenth = (pool_size + 5) // 10
        held_out = min(num_validation, max(tenth, 1) if pool_size > 1 else 0)
    validation, rest = order[:held_out], order[held_out:]
    if conversations is not None:
        rest = rest[~np.isin(conversations[rest], conversations[validation])]
    set_aside = pool_size - len(validation) - len(rest)
    train: list[tuple[int, int]] = []
    passes = 0
    while len(train) < num_train and len(rest):
        if passes:
            rest = rng.permutation(rest)
        train += [(i, passes) for i in rest[: num_train - len(train)].tolist()]
        passes += 1
    return Draw(train, [(i, 0) for i in validation.tolist()], passes, num_validation - held_out, set_aside)


def general_example(pool: GeneralPool, index: int, k: int, adapter: Adapter) -> Example:
    """Return the k-th use of a pool's row as a training row."""
    row = pool[index]
    return Example(
        id=f"{row.source}:{row.digest}:{k}",
        task=GENERAL,
        adapter=adapter,
        source=row.source,
        messages=row.messages,
        train_on=row.train_on,
    )
