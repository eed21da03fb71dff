"""The rows of a dataset, counted: how many, how long, in characters and in tokens."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pyarrow import ArrowInvalid
from pydantic import BaseModel

from data_builders.build import Progress
from data_builders.mixture import SPLITS
from data_builders.walk import rank
from data_builders.write import read_rows
from ewtrain.chat import ADAPTERS, GENERAL, Message, TrainOn, supervised_turns
from ewtrain.errors import DataError
from ewtrain.tasks import TASKS

if TYPE_CHECKING:
    from ewtrain.data.tokenize import ChatTokenizer

_BATCH_CHARACTERS = 2**20
_TASK_ORDER = {task: i for i, task in enumerate((*TASKS, GENERAL))}


class TokenSource(BaseModel, frozen=True):
    """How tokens were counted. `exact`: over every row; otherwise estimated from `measured_rows`."""

    tokenizer: str
    fingerprint: str
    exact: bool
    sample_share: float | None
    measured_rows: int
    refused: dict[str, dict[str, Any]]


class MixtureLine(BaseModel, frozen=True):
    """The rows of one adapter, split, source and task. Tokens are None where nothing was measured."""

    adapter: str
    split: str
    source: str
    task: str
    rows: int
    assistant_turns: int
    characters: int
    supervised_characters: int
    measured_rows: int
    tokens: int | None
    supervised_tokens: int | None


class LengthLine(BaseModel, frozen=True):
    """How long an adapter's rows of a task are, both splits together, over `n` rows."""

    adapter: str
    task: str
    n: int
    median: int
    p95: int
    max: int


class _Key(NamedTuple):
    adapter: str
    split: str
    source: str
    task: str


@dataclass
class _Row:
    id: str
    messages: list[Message]
    train_on: TrainOn
    characters: int
    supervised_characters: int


@dataclass
class _Cell:
    """The rows of one adapter, split, source and task; one number a row stays in memory."""

    rows: int = 0
    assistant_turns: int = 0
    characters: int = 0
    supervised_characters: int = 0
    # Characters of all rows, or tokens of the measured ones.
    lengths: array[int] = field(default_factory=lambda: array("q"))
    measured_characters: int = 0
    measured_supervised_characters: int = 0
    measured_tokens: int = 0
    measured_supervised_tokens: int = 0
    chosen: bool = False
    stand_in: tuple[int, _Row] | None = None  # measured if the sample takes none of the cell

    def line(self, key: _Key, *, exact: bool) -> MixtureLine:
        scale = supervised_scale = 1.0
        if not exact:
            # Characters are known of every row, so a sample need only say how many tokens a character makes.
            scale = self.characters / max(1, self.measured_characters)
            supervised_scale = self.supervised_characters / max(1, self.measured_supervised_characters)
        measured = self.measured_tokens > 0
        return MixtureLine(
            **key._asdict(),
            rows=self.rows,
            assistant_turns=self.assistant_turns,
            characters=self.characters,
            supervised_characters=self.supervised_characters,
            measured_rows=len(self.lengths) if measured else 0,
            tokens=round(self.measured_tokens * scale) if measured else None,
            supervised_tokens=round(self.measured_supervised_tokens * supervised_scale) if measured else None,
        )


@dataclass
class RowCount:
    """A dataset's rows, one cell an adapter, split, source and task; `sample_share` None: every row is measured."""

    tokenizer: ChatTokenizer | None
    sample_share: float | None
    cells: dict[_Key, _Cell] = field(default_factory=dict)
    refused: dict[str, dict[str, Any]] = field(default_factory=dict)
    _waiting: list[tuple[_Cell, _Row]] = field(default_factory=list)
    _waiting_characters: int = 0

    def add(self, key: _Key, row: dict[str, Any]) -> None:
        messages, trained = row["messages"], set(supervised_turns(row["messages"], row["train_on"]))
        sizes = [len(message["content"]) for message in messages]
        cell = self.cells.setdefault(key, _Cell())
        made = _Row(row["id"], messages, row["train_on"], sum(sizes), sum(sizes[i] for i in trained))
        cell.rows += 1
        cell.assistant_turns += sum(message["role"] == "assistant" for message in messages)
        cell.characters += made.characters
        cell.supervised_characters += made.supervised_characters
        if self.tokenizer is None:
            cell.lengths.append(made.characters)
            return
        number = rank(0, "stats", key.adapter, made.id)
        if self.sample_share is None or number < self.sample_share * 2**64:
            self._measure(cell, made)
        elif not cell.chosen and (cell.stand_in is None or number < cell.stand_in[0]):
            cell.stand_in = number, made

    def finish(self) -> None:
        """Measure what is still waiting, and one row of every cell that the sample left out."""
        for cell in self.cells.values():
            if cell.stand_in is not None:
                self._measure(cell, cell.stand_in[1])
        self._tokenize()

    def _measure(self, cell: _Cell, row: _Row) -> None:
        cell.chosen, cell.stand_in = True, None
        self._waiting.append((cell, row))
        self._waiting_characters += row.characters
        if self._waiting_characters >= _BATCH_CHARACTERS:
            self._tokenize()

    def _tokenize(self) -> None:
        if self.tokenizer is None:
            return
        from ewtrain.data.tokenize import RowError

        waiting, self._waiting, self._waiting_characters = self._waiting, [], 0
        encoded_rows = self.tokenizer.encode_many([(row.messages, row.train_on) for _, row in waiting])
        for (cell, row), encoded in zip(waiting, encoded_rows, strict=True):
            if isinstance(encoded, RowError):
                refused = self.refused.setdefault(encoded.kind, {"count": 0, "examples": []})
                refused["count"] += 1
                refused["examples"] += [row.id] if len(refused["examples"]) < 3 else []
                continue
            cell.lengths.append(len(encoded.input_ids))
            cell.measured_characters += row.characters
            cell.measured_supervised_characters += row.supervised_characters
            cell.measured_tokens += len(encoded.input_ids)
            cell.measured_supervised_tokens += encoded.num_supervised

    def lengths(self) -> dict[tuple[str, str], np.ndarray]:
        """Return the lengths by adapter and task, both splits together."""
        found: dict[tuple[str, str], list[array[int]]] = {}
        for key, cell in sorted(self.cells.items(), key=_in_order):
            if cell.lengths:
                found.setdefault((key.adapter, key.task), []).append(cell.lengths)
        return {key: np.concatenate([np.asarray(part) for part in parts]) for key, parts in found.items()}

    def length_lines(self) -> list[LengthLine]:
        lines = []
        for (adapter, task), lengths in self.lengths().items():
            median, p95 = map(round, np.percentile(lengths, [50, 95]))
            lines.append(
                LengthLine(
                    adapter=adapter, task=task, n=len(lengths), median=median, p95=p95, max=int(lengths.max())
                )
            )
        return lines

    def mixture_lines(self) -> list[MixtureLine]:
        exact = self.sample_share is None
        return [cell.line(key, exact=exact) for key, cell in sorted(self.cells.items(), key=_in_order)]

    def token_source(self) -> TokenSource | None:
        if self.tokenizer is None:
            return None
        return TokenSource(
            tokenizer=self.tokenizer.name,
            fingerprint=self.tokenizer.fingerprint,
            exact=self.sample_share is None,
            sample_share=self.sample_share,
            measured_rows=sum(len(cell.lengths) for cell in self.cells.values()),
            refused=dict(sorted(self.refused.items())),
        )

    def total(self, split: str | None = None, *, general: bool) -> int:
        return sum(
            cell.rows
            for key, cell in self.cells.items()
            if split in (key.split, None) and (key.task == GENERAL) == general
        )


def _in_order(entry: tuple[_Key, _Cell]) -> tuple[Any, ...]:
    key = entry[0]
    return (
        ADAPTERS.index(key.adapter),
        SPLITS.index(key.split),
        _TASK_ORDER.get(key.task, len(_TASK_ORDER)),
        key.task,
        key.source,
    )


def count_rows(
    dataset: Path,
    manifest: dict[str, Any],
    tokenizer: ChatTokenizer | None,
    sample_share: float | None,
    progress: Progress,
) -> RowCount:
    """Return what is in the rows; DataError unless they are those that the manifest counts."""
    count, done = RowCount(tokenizer, sample_share), 0
    total = sum(n["rows"] for _, n in _leaves(manifest["counts"]))
    for adapter in ADAPTERS:
        for split in SPLITS:
            path = dataset / adapter / f"{split}.parquet"
            try:
                for row in read_rows(path, ["id", "task", "source", "messages", "train_on"]):
                    count.add(_Key(adapter, split, row["source"], row["task"]), row)
                    done += 1
                    if done % 1000 == 0 or done == total:
                        progress("counting rows", done, total)
            except (FileNotFoundError, ArrowInvalid) as error:
                raise DataError(f"{path}: cannot be read ({error}). Build the dataset again.") from None
    _compare(dataset, manifest, count)
    count.finish()
    return count


def _leaves(counts: dict[str, Any]) -> Iterator[tuple[tuple[str, str, str], dict[str, int]]]:
    for adapter, splits in counts.items():
        for split, tasks in splits.items():
            for task, numbers in tasks.items():
                yield (adapter, split, task), numbers


def _compare(dataset: Path, manifest: dict[str, Any], count: RowCount) -> None:
    """Raise DataError unless the rows are those that the manifest counts."""
    found: dict[tuple[str, str, str], Counter[str]] = {}
    for key, cell in count.cells.items():
        found.setdefault((key.adapter, key.split, key.task), Counter()).update(
            rows=cell.rows, assistant_turns=cell.assistant_turns, characters=cell.characters
        )
    said = {key: Counter(numbers) for key, numbers in _leaves(manifest["counts"])}
    wrong = []
    for place in sorted(said.keys() | found.keys()):
        here, there = found.get(place, Counter()), said.get(place, Counter())
        wrong += [
            f"{' '.join(place)}: {name} are {here[name]:,}, the manifest counts {there[name]:,}"
            for name in ("rows", "assistant_turns", "characters")
            if here[name] != there[name]
        ]
    if wrong:
        more = f"\n  and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise DataError(
            f"{dataset}: the rows are not those of its manifest; the folder was changed. Build it again.\n  "
            + "\n  ".join(wrong[:5])
            + more
        )


def count_snapshots(dataset: Path, manifest: dict[str, Any]) -> Counter[str]:
    """Return the snapshots of each kind; DataError unless they are those that the manifest counts."""
    path, kinds = dataset / "snapshots.jsonl", Counter[str]()
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                kinds[json.loads(line)["kind"]] += 1
    except (FileNotFoundError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}). Build the dataset again.") from None
    if kinds != Counter(manifest["snapshots"]):
        raise DataError(
            f"{path}: holds {dict(kinds)} snapshots, the manifest counts {manifest['snapshots']}. Build it again."
        )
    return kinds
