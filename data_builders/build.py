"""Timelines to a dataset: rows of both adapters, splits, snapshots, manifest (contract section 3)."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from data_builders.build_report import card
from data_builders.general import GeneralPool, draw, general_example
from data_builders.mixture import SPLITS, Mixture, Plan, Planner, Split, step_fault, training_steps
from data_builders.snapshots import take_snapshots
from data_builders.splits import (
    SMALL_CORPUS,
    Splits,
    ValidationBy,
    ends_in_training,
    make_splits,
    training_scenes,
    write_splits,
)
from data_builders.timelines import Corpus, read_corpus
from data_builders.walk import Step, rank
from data_builders.write import RowWriter, whole_folder
from ewtrain.chat import ADAPTERS, GENERAL, Adapter, Example, assistant
from ewtrain.errors import DataError
from ewtrain.files import DATASET_MANIFEST, dataset_manifest, file_hash, read_json, write_json
from ewtrain.story import TASK_NAMES
from ewtrain.tasks import TASKS, WORDINGS

MANIFEST = DATASET_MANIFEST
Progress = Callable[[str, int, int], None]


class BuildSettings(BaseModel):
    """What a build can be told; two builds with equal settings and inputs give the same bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = 0
    mixture: Mixture = "full"
    validation_by: ValidationBy = "scene"
    general_per_task_example: float = Field(default=1.0, ge=0)  # EW 4.1: Tulu 3 at 1:1
    drop_share_limit: float = Field(default=0.01, ge=0, le=1)
    general_drop_share_limit: float = Field(default=0.1, ge=0, le=1)
    skip_bad: bool = False


@dataclass
class Tally:
    """Rows, assistant turns and characters, by adapter, split and task."""

    rows: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    turns: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    characters: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def add(self, split: str, row: Example) -> None:
        key = (row.adapter, split, row.task)
        self.rows[key] += 1
        self.turns[key] += sum(message["role"] == "assistant" for message in row.messages)
        self.characters[key] += sum(len(message["content"]) for message in row.messages)

    def total(self, adapter: Adapter, split: str) -> int:
        """Return the task rows of a split, general rows left out."""
        return sum(
            n for (a, s, task), n in self.rows.items() if (a, s) == (adapter, split) and task != GENERAL
        )

    def as_json(self) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        for adapter, split, task in sorted(self.rows):
            key = (adapter, split, task)
            tree.setdefault(adapter, {}).setdefault(split, {})[task] = {
                "rows": self.rows[key],
                "assistant_turns": self.turns[key],
                "characters": self.characters[key],
            }
        return tree


@dataclass
class Written:
    """What a build wrote beside the row files' own counts."""

    tally: Tally = field(default_factory=Tally)
    snapshots: Counter[str] = field(default_factory=Counter)
    validation_updates: Counter[str] = field(default_factory=Counter)
    general: dict[str, Any] | None = None


def build(
    timelines: Iterable[Path],
    out: Path,
    settings: BuildSettings,
    *,
    general: str | None = None,
    splits_file: Path | None = None,
    overwrite: bool = False,
    progress: Progress = lambda stage, done, total: None,
) -> dict[str, Any]:
    """Build a dataset folder and return its manifest; the folder appears only when all of it is written."""
    with whole_folder(out, marker=MANIFEST, overwrite=overwrite) as folder:
        corpus = read_corpus(timelines, skip_bad=settings.skip_bad)
        splits = make_splits(
            corpus.num_scenes,
            seed=settings.seed,
            by=settings.validation_by,
            given=splits_file,
            ignore_unknown=bool(corpus.bad),
        )
        plan = _plan(corpus, splits, settings, progress)
        with ExitStack() as stack:
            pool = None
            if general is not None and settings.general_per_task_example > 0:
                work = stack.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix=".general-"))
                pool = _read_general(general, Path(work), settings)
            written = _write(corpus, plan, pool, folder, settings, progress)
        write_splits(splits, folder / "splits.json")
        manifest = _manifest(corpus, plan, settings, written, splits_file)
        write_json(folder / MANIFEST, manifest)
        (folder / "README.md").write_text(card(manifest), encoding="utf-8")
    return manifest


def _read_general(source: str, work: Path, settings: BuildSettings) -> GeneralPool:
    """Return the pool of general rows; DataError where too much of its source, or all of it, was refused."""
    pool = GeneralPool.read(source, work)
    refused = {reason: entry for reason, entry in pool.report["refused"].items() if reason != "duplicate"}
    num_refused = sum(entry["count"] for entry in refused.values())
    reasons = ", ".join(
        f"{reason}: {entry['count']} (such as {', '.join(entry['examples'])})"
        for reason, entry in refused.items()
    )
    if len(pool) == 0:
        raise DataError(
            f"{source}: no row can be used; {reasons or 'it holds none'}. Give other data with --general."
        )
    share = num_refused / pool.report["read"]
    if share > settings.general_drop_share_limit:
        raise DataError(
            f"{source}: {num_refused} of {pool.report['read']} rows ({share:.1%}) were refused, over the limit of "
            f"{settings.general_drop_share_limit:.1%}: {reasons}. Mend them, or raise --general-drop-share-limit."
        )
    return pool


def _plan(corpus: Corpus, splits: Splits, settings: BuildSettings, progress: Progress) -> Plan:
    planner = Planner(Plan(settings.seed, splits, settings.validation_by), settings.mixture)
    for i, book_id in enumerate(corpus.paths):
        planner.add(corpus.read(book_id))
        progress("choosing rows", i + 1, len(corpus.paths))
    plan = planner.finish()
    rejected = sum(n for reason, n in plan.dropped.counts.items() if reason != "not_in_source")
    made = planner.num_candidates
    if made == 0:
        raise DataError(
            "These timelines give no training row. Look at the splits, and at what the books provide."
        )
    share = rejected / (made + rejected)
    if share > settings.drop_share_limit:
        reasons = ", ".join(
            f"{reason}: {count} (such as {', '.join(plan.dropped.examples[reason])})"
            for reason, count in plan.dropped.counts.items()
            if reason != "not_in_source"
        )
        raise DataError(
            f"{rejected} of {made + rejected} rows ({share:.1%}) were rejected by their own parsers, over the limit of "
            f"{settings.drop_share_limit:.1%}: {reasons}. Mend the timelines, or raise --drop-share-limit."
        )
    return plan


def wording_of(seed: int, step: Step) -> int:
    """Return the wording drawn for a task in a scene."""
    return rank(seed, "wording", step.book_id, step.scene, step.task) % WORDINGS


def make_row(step: Step, wording: int) -> Example | None:
    """Return the row that a step becomes, unfitted; None where the source lacks its answer."""
    made = step.make()
    if made is None:
        return None
    inp, target = made
    task = TASKS[step.task]
    messages = [*task.render(inp, wording=wording).messages, assistant(task.format_target(target))]
    return Example.model_construct(
        id=step.id,
        task=step.task,
        adapter=task.adapter,
        source="ew",
        book_id=step.book_id,
        scene=step.scene,
        segment=step.segment,
        actors=step.actors,
        wording=wording,
        messages=messages,
        train_on="all",
        input=inp.model_dump_json(),
    )


def _write(
    corpus: Corpus,
    plan: Plan,
    pool: GeneralPool | None,
    folder: Path,
    settings: BuildSettings,
    progress: Progress,
) -> Written:
    written = Written()
    with ExitStack() as stack:
        writers: dict[tuple[Adapter, Split], RowWriter] = {}
        for adapter in ADAPTERS:
            (folder / adapter).mkdir()
            for split in SPLITS:
                writer = RowWriter(folder / adapter / f"{split}.parquet")
                stack.callback(writer.close)
                writers[adapter, split] = writer
        updates = RowWriter(folder / "world_model" / "validation_updates.parquet")
        stack.callback(updates.close)
        snapshots = stack.enter_context((folder / "snapshots.jsonl").open("w", encoding="utf-8"))
        for i, book_id in enumerate(corpus.paths):
            timeline = corpus.read(book_id)
            for step in training_steps(timeline, plan.splits):
                if step.task not in timeline.provides:
                    continue
                goes_to = plan.row_split(step)
                # Update decisions are scored at their natural rate: every interaction of these scenes.
                for_scores = step.task == "world_update" and plan.split_of(step) == "validation"
                if goes_to is None and not for_scores:
                    continue
                row = make_row(step, wording_of(plan.seed, step))
                if row is None:
                    continue
                if goes_to is not None:
                    writers[row.adapter, goes_to].add(row)
                    written.tally.add(goes_to, row)
                if for_scores and (goes_to is not None or step_fault(step) is None):
                    updates.add(row)
                    written.validation_updates["rows"] += 1
                elif for_scores:
                    written.validation_updates["rejected"] += 1
            for snapshot in take_snapshots(timeline, plan.splits.books[book_id], plan.seed):
                snapshots.write(snapshot.model_dump_json() + "\n")
                written.snapshots[snapshot.kind] += 1
            progress("writing rows", i + 1, len(corpus.paths))
        if pool is not None:
            written.general = _write_general(pool, writers, written.tally, settings, progress)
    return written


def _write_general(
    pool: GeneralPool,
    writers: dict[tuple[Adapter, Split], RowWriter],
    tally: Tally,
    settings: BuildSettings,
    progress: Progress,
) -> dict[str, Any]:
    """Write each adapter's general rows, drawn independently and matched 1:1 in each split."""
    report: dict[str, Any] = {**pool.report, "adapters": {}}
    for adapter in ADAPTERS:
        wanted = {s: int(settings.general_per_task_example * tally.total(adapter, s) + 0.5) for s in SPLITS}
        drawn = draw(
            len(pool),
            wanted["train"],
            wanted["validation"],
            seed=settings.seed,
            adapter=adapter,
            conversations=pool.conversations,
        )
        for split in SPLITS:
            for index, k in drawn.train if split == "train" else drawn.validation:
                row = general_example(pool, index, k, adapter)
                writers[adapter, split].add(row)
                tally.add(split, row)
        report["adapters"][adapter] = {
            "wanted": wanted,
            "drawn": {"train": len(drawn.train), "validation": len(drawn.validation)},
            "passes": drawn.passes,
            "validation_shortfall": drawn.shortfall,
            "set_aside": drawn.set_aside,
        }
        progress("writing general rows", ADAPTERS.index(adapter) + 1, len(ADAPTERS))
    return report


def _manifest(
    corpus: Corpus, plan: Plan, settings: BuildSettings, written: Written, splits_file: Path | None
) -> dict[str, Any]:
    kinds = plan.splits.books
    return {
        "format_version": 1,
        "settings": settings.model_dump(mode="json"),
        "versions": {name: version(name) for name in ("ewtrain", "numpy", "pyarrow")},
        "tasks": {name: TASKS[name].fingerprint() for name in TASK_NAMES},
        "books": {
            book_id: {
                "file": _shown(path),
                "sha256": corpus.hashes[book_id],
                "kind": kinds[book_id],
                "scenes": corpus.num_scenes[book_id],
                "training_scenes": training_scenes(kinds[book_id], corpus.num_scenes[book_id]),
                "end_of_book_row": ends_in_training(kinds[book_id]),
                "provides": corpus.provides[book_id],
            }
            for book_id, path in corpus.paths.items()
        },
        "set_aside": {
            _shown(Path(path)): [_shown_text(str(fault)) for fault in faults]
            for path, faults in corpus.bad.items()
        },
        "splits_file": {"sha256": file_hash(splits_file)} if splits_file else None,
        "small_corpus": splits_file is None and len(corpus.paths) < SMALL_CORPUS,
        "notices": len(corpus.notices),
        "counts": written.tally.as_json(),
        "validation_updates": {name: written.validation_updates[name] for name in ("rows", "rejected")},
        "snapshots": {kind: written.snapshots[kind] for kind in ("id", "ood")},
        "dropped": plan.dropped.as_json(),
        "not_drawn": dict(sorted(plan.not_drawn.items())),
        "general": written.general,
    }


def _shown_text(text: str) -> str:
    """Return a text that may hold a file's name, bytes that are no text written out."""
    return text.encode("utf-8", "backslashreplace").decode()


def _shown(path: Path) -> str:
    return _shown_text(path.name)


def manifest_hash(folder: Path) -> str:
    """Return the SHA-256 of a dataset's manifest: what names the data in an adapter's manifest."""
    return file_hash(dataset_manifest(folder))


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a finished dataset folder."""
    return read_json(dataset_manifest(folder))
