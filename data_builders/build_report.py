"""What a build tells its reader: the dataset card, and the sentences beside its counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from data_builders.splits import SMALL_CORPUS
from ewtrain.chat import ADAPTERS
from ewtrain.story import TASK_NAMES


def card(manifest: dict[str, Any]) -> str:
    """Return the dataset card; its configs let `datasets.load_dataset(folder, adapter)` work."""
    configs = "\n".join(
        f"- config_name: {adapter}\n  data_files:\n"
        f"  - split: train\n    path: {adapter}/train.parquet\n"
        f"  - split: validation\n    path: {adapter}/validation.parquet"
        for adapter in ADAPTERS
    )
    rows = "\n".join(
        f"| {adapter} | {split} | {task} | {n['rows']:,} | {n['assistant_turns']:,} |"
        for adapter, by_split in manifest["counts"].items()
        for split, by_task in by_split.items()
        for task, n in by_task.items()
    )
    books = len(manifest["books"])
    return (
        f"---\nconfigs:\n{configs}\n---\n\n# Interactive literary worlds: rows for both adapters\n\n"
        f"Built by ewtrain from {books} book{'s' if books != 1 else ''}, seed {manifest['settings']['seed']}, mixture "
        f"`{manifest['settings']['mixture']}`. What was dropped, and why, is in `manifest.json`.\n\n"
        f"| adapter | split | task | rows | assistant turns |\n| --- | --- | --- | ---: | ---: |\n{rows}\n"
    )


def sentences(manifest: dict[str, Any]) -> list[str]:
    """Return what a user should know of a build beyond its counts, a sentence each."""
    said = []
    if manifest["small_corpus"]:
        said.append(
            f"Fewer than {SMALL_CORPUS} books: all are train_test, so there are no ood snapshots and no end-of-book "
            "rows. Give --splits to decide otherwise."
        )
    for name, faults in manifest["set_aside"].items():
        said.append(f"{name} was set aside: {len(faults)} fault(s), such as {faults[0]}")
    for book_id, book in manifest["books"].items():
        lacking = [task for task in TASK_NAMES if task not in book["provides"]]
        if lacking:
            said.append(
                f"{book_id} does not provide {', '.join(lacking)}: no rows for these, and no snapshots."
            )
    for reason, dropped in manifest["dropped"].items():
        said.append(f"{dropped['count']:,} rows not made, {reason}: such as {', '.join(dropped['examples'])}")
    if manifest["general"] is None:
        said.append("No general chat data: the paper mixes Tulu 3 in at 1:1. Give --general to do so.")
    else:
        said += _general_sentences(manifest["general"])
    return said


def _general_sentences(report: dict[str, Any]) -> Sequence[str]:
    said = []
    for adapter, drawn in report["adapters"].items():
        if drawn["passes"] > 1:
            said.append(
                f"{adapter}: the general data ran out and was passed through {drawn['passes']} times."
            )
        if drawn["validation_shortfall"]:
            said.append(
                f"{adapter}: {drawn['validation_shortfall']:,} general validation rows fewer than task rows."
            )
        if drawn["set_aside"]:
            said.append(
                f"{adapter}: {drawn['set_aside']:,} general rows left out of train, their conversation being held out."
            )
    for note, count in report["notes"].items():
        said.append(f"General data: {count:,} rows with {note.replace('_', ' ')}.")
    for reason, refused in report["refused"].items():
        said.append(
            f"General data: {refused['count']:,} rows refused, {reason}: such as {', '.join(refused['examples'])}"
        )
    return said
