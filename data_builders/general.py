"""General chat data to normalised rows, each kept once, and what an adapter draws (contract section 3).

Every row is kept, or counted by the reason it was refused for.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from data_builders.chat_dialects import Refused, normalise
from data_builders.general_files import open_source
from ewtrain.chat import GENERAL, Adapter, Example, Message, TrainOn
from ewtrain.errors import DataError

_canonical_json = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode
_STRICT_LISTED = 20


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


@dataclass
class _Index:
    """Where each row of a pool's file starts, and what is known of it beside its messages."""

    starts: array[int] = field(default_factory=lambda: array("Q", [0]))
    last_only: bytearray = field(default_factory=bytearray)
    conversations: array[int] = field(default_factory=lambda: array("Q"))


class GeneralPool:
    """The kept rows of one source, on disk; `pool[i]` reads one.

    `report` is JSON: `source`, `files`, `ignored_files`, `read`, `kept`, `digest` (over the kept rows in
    order), `notes` {note: count}, over every readable row, repeated ones included, and `refused` {reason:
    {`count`, `examples`, `details`}} with the first three rows of each. `read` is `kept` plus all refused.

    `conversations[i]` is a hash of row i without its system message: the unit that `draw` holds out.
    """

    def __init__(self, path: Path, index: _Index, report: dict[str, Any]) -> None:
        self.path = path
        self.report = report
        self.source: str = report["source"]
        self.conversations = np.array(index.conversations, np.uint64)
        self._index = index
        # Read row by row, not mapped: the pages of a mapped file count as memory of the process.
        self._file = path.open("rb")

    def __len__(self) -> int:
        return len(self._index.last_only)

    def __getitem__(self, index: int) -> GeneralRow:
        start, end = self._index.starts[index], self._index.starts[index + 1]
        self._file.seek(start)
        text = self._file.read(end - start).decode()
        train_on: TrainOn = "last" if self._index.last_only[index] else "all"
        return GeneralRow(self.source, _digest(text), json.loads(text), train_on)

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
        found = open_source(source)
        work_dir.mkdir(parents=True, exist_ok=True)
        out = work_dir / f"{found.name}.rows"
        # An earlier pool may still read `out`: a file is put in its place, never written over.
        partial = out.with_suffix(".partial")
        try:
            with partial.open("wb") as file:
                index, report = _write_rows(found.rows, file, strict, progress)
            os.replace(partial, out)
        finally:
            partial.unlink(missing_ok=True)
        about = {"source": found.name, "files": found.files, "ignored_files": found.ignored_files}
        return cls(out, index, {**about, **report})


def _write_rows(
    rows: Iterator[tuple[str, object]],
    file: BinaryIO,
    strict: bool,
    progress: Callable[[int], None] | None,
) -> tuple[_Index, dict[str, Any]]:
    """Write what `normalise` keeps, each content once, and return the counts."""
    read = kept = 0
    notes: Counter[str] = Counter()
    refused: dict[str, dict[str, Any]] = {}
    faults: list[str] = []
    # Ids are made of these 16 digits, so it is by them, not by the text, that rows must differ.
    seen: set[int] = set()
    content_hash = hashlib.sha256()
    index = _Index()
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
        index.starts.append(index.starts[-1] + file.write(text.encode()))
        index.last_only.append(row.train_on == "last")
        index.conversations.append(conversation)
        kept += 1
    if progress:
        progress(read)
    if strict and faults:
        bad = sum(entry["count"] for reason, entry in refused.items() if reason != "duplicate")
        listed = f"the first {len(faults)} of them" if bad > len(faults) else "all of them"
        raise DataError(
            "\n".join([f"{bad} of {read} rows cannot be used; {listed}:", *faults])
            + "\nMend or remove these rows, or read without strict to leave them out and count them."
        )
    return index, {
        "read": read,
        "kept": kept,
        "digest": content_hash.hexdigest(),
        "notes": dict(sorted(notes.items())),
        "refused": dict(sorted(refused.items())),
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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
