"""Rows prepared for training: tokenised, fitted to the length, counted, and kept in memory-mapped files.

Preparation needs no process group: processes that want the same data wait for the one that is at it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ValidationError
from tqdm import tqdm

import ewtrain
from ewtrain.chat import GENERAL, Adapter, Example, Message
from ewtrain.data.tokenize import IGNORED, ChatTokenizer, Encoded, RowError
from ewtrain.errors import ConfigError, DataError
from ewtrain.files import dataset_manifest, file_hash, read_json, write_json
from ewtrain.story import TaskName
from ewtrain.tasks import TASKS, WORDINGS, Budget, ParseError, PromptTooLong

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

SPLITS = ("train", "validation")
OverLong = Literal["fit", "drop", "error"]

_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("task", pa.string()),
        ("input_ids", pa.list_(pa.int32())),
        ("labels", pa.list_(pa.int32())),
    ]
)
_BATCH = 64
# Rows of each task whose prompt is rendered anew and compared; every fitted row is too.
_COMPARED_PER_TASK = 16


class Dropped(BaseModel):
    count: int = 0
    examples: list[str] = []


class TaskCounts(BaseModel):
    """`long_answers`: gold answers longer than the task's max_answer_tokens, which a server would cut."""

    rows: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    long_answers: int = 0


class SplitReport(BaseModel):
    """What became of a split's rows. `omitted` and `moved_to_prior` count interactions of the fitted rows."""

    read: int = 0
    kept: int = 0
    fitted: int = 0
    omitted: int = 0
    moved_to_prior: int = 0
    longest: int = 0
    dropped: dict[str, Dropped] = {}
    tasks: dict[str, TaskCounts] = {}

    @property
    def num_dropped(self) -> int:
        return sum(dropped.count for dropped in self.dropped.values())

    @property
    def tokens(self) -> int:
        return sum(counts.tokens for counts in self.tasks.values())

    @property
    def supervised_tokens(self) -> int:
        return sum(counts.supervised_tokens for counts in self.tasks.values())

    def drop(self, reason: str, row_id: str) -> None:
        dropped = self.dropped.setdefault(reason, Dropped())
        dropped.count += 1
        if len(dropped.examples) < 3:
            dropped.examples.append(row_id)

    def lines(self, split: str) -> Iterator[str]:
        """Yield the report as lines for a person."""
        yield (
            f"{split}: {self.kept} of {self.read} rows, {self.tokens:,} tokens, {self.supervised_tokens:,} of them "
            f"supervised, longest row {self.longest}"
        )
        yield f"{split}: kept " + ", ".join(f"{n.rows} {task}" for task, n in sorted(self.tasks.items()))
        if self.fitted:
            yield (
                f"{split}: {self.fitted} over-long rows fitted ({self.omitted} interactions omitted, "
                f"{self.moved_to_prior} moved to prior)"
            )
        for reason, dropped in self.dropped.items():
            yield f"{split}: {dropped.count} rows dropped: {reason} (such as {', '.join(dropped.examples)})"
        for task, counts in self.tasks.items():
            if counts.long_answers:
                yield f"{split}: {counts.long_answers} answers of {task} are longer than its max_answer_tokens, and would be cut when served"


@dataclass(frozen=True)
class Prepared:
    """Prepared rows on disk, and what became of the rows they were made from."""

    folder: Path
    reports: dict[str, SplitReport]
    data_manifest_hash: str | None
    reused: bool

    def rows(self, split: str) -> Dataset:
        """Return a memory-mapped dataset with columns id, task, input_ids, labels."""
        from datasets import Dataset

        return Dataset.from_file(str(self.folder / f"{split}.arrow"))


@dataclass(frozen=True)
class _Settings:
    max_length: int
    over_long: OverLong
    max_answer_tokens: dict[TaskName, int]


def prepare_rows(
    data: Path,
    adapter: Adapter,
    chat: ChatTokenizer,
    *,
    max_length: int,
    over_long: OverLong,
    drop_share_limit: float,
    max_answer_tokens: dict[TaskName, int],
    cache: Path,
) -> Prepared:
    """Return the adapter's rows as tokens, from `cache` if the same were prepared before.

    A longer task row is fitted by its task; what does not fit even so, and a longer general row, is dropped
    and counted. DataError if a larger share than `drop_share_limit` is dropped, or nothing is left to train.
    """
    files = {split: data / adapter / f"{split}.parquet" for split in SPLITS}
    for path in files.values():
        if not path.is_file():
            raise DataError(f"{path} is missing. Make it with `ewtrain build TIMELINES --out {data}`.")
    counts, manifest_hash = _read_manifest(data, adapter)
    settings = _Settings(max_length, over_long, max_answer_tokens)
    # All that the prepared files depend on; whatever is not here must not change them.
    depends_on = {
        "ewtrain": ewtrain.__version__,
        "adapter": adapter,
        "tokenizer": chat.fingerprint,
        "max_length": max_length,
        "over_long": over_long,
        "max_answer_tokens": max_answer_tokens,
        "tasks": {name: task.fingerprint() for name, task in TASKS.items() if task.adapter == adapter},
        "data": {split: file_hash(path) for split, path in files.items()},
    }
    key = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache / key
    cache.mkdir(parents=True, exist_ok=True)
    with _only_one_at_it(cache / f"{key}.lock"):
        reused = (folder / "report.json").is_file()
        if not reused:
            partial = cache / f"{key}.partial"
            shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
            partial.mkdir()
            reports = {
                split: _prepare_split(path, partial, split, chat, settings) for split, path in files.items()
            }
            write_json(partial / "depends_on.json", depends_on)
            write_json(
                partial / "report.json", {split: report.model_dump() for split, report in reports.items()}
            )
            partial.rename(folder)
    saved = json.loads((folder / "report.json").read_text("utf-8"))
    reports = {split: SplitReport.model_validate(saved[split]) for split in SPLITS}
    for split, report in reports.items():
        if report.read != counts[split]:
            raise DataError(
                f"{files[split]}: holds {report.read} rows, and the manifest counts {counts[split]}. The folder was "
                "changed: build it again."
            )
        _check_dropped(files[split], report, drop_share_limit)
    if not reports["train"].kept:
        raise DataError(
            f"{files['train']}: no row is left to train on. Raise max_length, or build more rows."
        )
    return Prepared(folder, reports, manifest_hash, reused)


def _read_manifest(data: Path, adapter: Adapter) -> tuple[dict[str, int], str]:
    """Return the rows of each split that a finished build counts, and the hash of its manifest."""
    path = dataset_manifest(data)
    manifest = read_json(path)
    version = manifest.get("format_version") if isinstance(manifest, dict) else None
    if version != 1:
        raise DataError(
            f"{path}: format_version is {version!r}, and this ewtrain reads 1. Build the rows again."
        )
    counts = manifest.get("counts", {}).get(adapter, {})
    return {s: sum(task["rows"] for task in counts.get(s, {}).values()) for s in SPLITS}, file_hash(path)


def _prepare_split(
    path: Path, folder: Path, split: str, chat: ChatTokenizer, settings: _Settings
) -> SplitReport:
    report = SplitReport()
    compared: dict[str, int] = {}
    try:
        parquet = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error}). Build it again.") from error
    total = parquet.metadata.num_rows
    with (
        pa.OSFile(str(folder / f"{split}.arrow"), "wb") as file,
        pa.ipc.new_stream(file, _SCHEMA) as writer,
        tqdm(total=total, desc=f"tokenise {split}", unit=" rows", leave=False, disable=None) as progress,
    ):
        for batch in _batches(path, parquet):
            examples = _read(path, report.read, batch.to_pylist())
            encoded = chat.encode_many([(example.messages, example.train_on) for example in examples])
            kept = _Columns()
            for example, row in zip(examples, encoded, strict=True):
                report.read += 1
                _check_answer(path, example)
                if compared.get(example.task, 0) < _COMPARED_PER_TASK:
                    compared[example.task] = compared.get(example.task, 0) + 1
                    _check_same_prompt(path, example)
                try:
                    tokens = _within_length(path, example, row, chat, settings, report)
                except RowError as error:
                    report.drop(error.kind, example.id)
                    continue
                if tokens is None:
                    report.drop("too_long", example.id)
                elif not tokens.num_supervised:
                    report.drop("nothing_supervised", example.id)
                else:
                    _count(report, example, tokens, settings)
                    kept.add(example, tokens)
            writer.write_batch(kept.batch())
            progress.update(len(examples))
    return report


def _within_length(
    path: Path,
    example: Example,
    row: Encoded | RowError,
    chat: ChatTokenizer,
    settings: _Settings,
    report: SplitReport,
) -> Encoded | None:
    """Return the row's tokens, fitted if need be; None if it cannot be made short enough."""
    if isinstance(row, RowError):
        raise row
    if len(row.input_ids) <= settings.max_length:
        return row
    if settings.over_long == "error":
        raise DataError(
            f"{path}: row {example.id} has {len(row.input_ids)} tokens, max_length is {settings.max_length}. "
            "Raise max_length, or set over_long=fit or over_long=drop."
        )
    if settings.over_long == "drop" or example.task == GENERAL:
        return None
    _check_same_prompt(path, example)
    task, inp = _task_and_input(path, example)
    answer = example.messages[-1]

    def count_row(messages: list[Message]) -> int:
        return chat.count([*messages, answer])

    try:
        prompt = task.render(inp, wording=example.wording or 0, budget=Budget(count_row, settings.max_length))
    except PromptTooLong:
        return None
    fitted = chat.encode([*prompt.messages, answer], example.train_on)
    report.fitted += 1
    report.omitted += prompt.omitted
    report.moved_to_prior += prompt.moved_to_prior
    return fitted


def _batches(path: Path, parquet: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    try:
        yield from parquet.iter_batches(_BATCH)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: cannot be read to its end ({error}). Build it again.") from error


def _check_answer(path: Path, example: Example) -> None:
    """Raise DataError for a row that lies in the wrong folder, or whose answer its own task would refuse."""
    if example.adapter != path.parent.name:
        raise DataError(f"{path}: row {example.id} is of the {example.adapter}. Build the rows again.")
    if example.task == GENERAL:
        return
    task, inp = _task_and_input(path, example)
    if not 0 <= (example.wording or 0) < WORDINGS:
        raise DataError(
            f"{path}: row {example.id} has the unknown wording {example.wording}. Build the rows again."
        )
    if not example.messages or example.messages[-1]["role"] != "assistant":
        raise DataError(f"{path}: row {example.id} does not end with an answer. Build the rows again.")
    try:
        task.parse(example.messages[-1]["content"], inp)
    except ParseError as error:
        raise DataError(
            f"{path}: row {example.id}: its answer is none of {example.task} ({error}). Build the rows again."
        ) from error


def _check_same_prompt(path: Path, example: Example) -> None:
    """Raise DataError if this ewtrain writes a task row's prompt otherwise than the row has it.

    The adapter's manifest records this code's task fingerprints, so they must be those of the rows.
    """
    if example.task == GENERAL:
        return
    task, inp = _task_and_input(path, example)
    if task.render(inp, wording=example.wording or 0).messages != example.messages[:-1]:
        raise DataError(
            f"{path}: row {example.id} was written by another version of the task {example.task}. "
            "Build the rows again with this ewtrain."
        )


def _task_and_input(path: Path, example: Example) -> tuple[Any, Any]:
    if example.task not in TASKS or example.input is None:
        missing = "no input" if example.task in TASKS else f"the unknown task {example.task!r}"
        raise DataError(f"{path}: row {example.id} has {missing}. Build the rows again with this ewtrain.")
    task = TASKS[example.task]
    try:
        return task, task.Input.model_validate_json(example.input)
    except ValidationError as error:
        raise DataError(
            f"{path}: row {example.id}: its input is not one of {example.task} ({error.errors()[0]['msg']}). "
            "Build the rows again with this ewtrain."
        ) from error


def _count(report: SplitReport, example: Example, tokens: Encoded, settings: _Settings) -> None:
    counts = report.tasks.setdefault(example.task, TaskCounts())
    counts.rows += 1
    counts.tokens += len(tokens.input_ids)
    counts.supervised_tokens += tokens.num_supervised
    report.kept += 1
    report.longest = max(report.longest, len(tokens.input_ids))
    limit = settings.max_answer_tokens.get(example.task)  # type: ignore[call-overload]
    if limit is not None:
        # An answer is a run of labels; its end of turn, the last of the run, counts as generated too.
        counts.long_answers += sum(end - start > limit for start, end in supervised_runs(tokens.labels))


def supervised_runs(labels: list[int] | np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    """Return the spans of labels that are not ignored: one for each supervised answer."""
    on = np.concatenate(([0], (np.asarray(labels) != IGNORED).astype(np.int8), [0]))
    edges = np.flatnonzero(np.diff(on))
    return [(int(start), int(end)) for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _check_dropped(path: Path, report: SplitReport, limit: float) -> None:
    if report.read and report.num_dropped > limit * report.read:
        reasons = "; ".join(
            f"{dropped.count} {reason} (such as {', '.join(dropped.examples)})"
            for reason, dropped in report.dropped.items()
        )
        raise DataError(
            f"{path}: {report.num_dropped} of {report.read} rows would be dropped, more than drop_share_limit "
            f"({limit}): {reasons}. Raise max_length, mend the rows, or raise drop_share_limit."
        )


def _read(path: Path, at: int, rows: list[dict[str, Any]]) -> list[Example]:
    examples = []
    for i, row in enumerate(rows, at):
        try:
            examples.append(Example.model_validate(row))
        except ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(map(str, fault["loc"]))
            raise DataError(f"{path}: row {i}: {where}: {fault['msg']}. Build the rows again.") from error
    return examples


@dataclass
class _Columns:
    ids: list[str] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    input_ids: list[np.ndarray[Any, Any]] = field(default_factory=list)
    labels: list[np.ndarray[Any, Any]] = field(default_factory=list)

    def add(self, example: Example, tokens: Encoded) -> None:
        self.ids.append(example.id)
        self.tasks.append(example.task)
        self.input_ids.append(np.array(tokens.input_ids, np.int32))
        self.labels.append(np.array(tokens.labels, np.int32))

    def batch(self) -> pa.RecordBatch:
        offsets = np.concatenate(([0], np.cumsum([len(ids) for ids in self.input_ids]))).astype(np.int32)
        lists = [
            pa.ListArray.from_arrays(offsets, np.concatenate(arrays) if arrays else np.array([], np.int32))
            for arrays in (self.input_ids, self.labels)
        ]
        return pa.RecordBatch.from_arrays(
            [pa.array(self.ids, pa.string()), pa.array(self.tasks, pa.string()), *lists], schema=_SCHEMA
        )


@contextmanager
def _only_one_at_it(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class PadCollator:
    """Makes a batch: padded at the right, and masked by length, since a pad id may be a real end of turn."""

    pad_id: int

    def __call__(self, rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        import torch

        longest = max(len(row["input_ids"]) for row in rows)
        shape = (len(rows), longest)
        batch = {
            "input_ids": torch.full(shape, self.pad_id),
            "labels": torch.full(shape, IGNORED),
            "attention_mask": torch.zeros(shape, dtype=torch.long),
        }
        for i, row in enumerate(rows):
            length = len(row["input_ids"])
            batch["input_ids"][i, :length] = torch.tensor(row["input_ids"])
            batch["labels"][i, :length] = torch.tensor(row["labels"])
            batch["attention_mask"][i, :length] = 1
        return batch


def refuse_several_processes() -> None:
    """Raise ConfigError under torchrun and the like."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "ewtrain sft trains in one process so far. Start it without torchrun or accelerate launch."
        )
