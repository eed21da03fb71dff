"""A small built folder without a builder: rows made from the tasks' specimens, and general chats."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from data_builders.write import ROW_SCHEMA
from ewtrain.chat import ADAPTERS, Example, assistant, user
from ewtrain.tasks import TASKS, WORDINGS
from ewtrain.tasks.specimens import SPECIMENS


def task_row(name, inp, target, *, wording=0, row_id="toy:0"):
    task = TASKS[name]
    messages = [*task.render(inp, wording=wording).messages, assistant(task.format_target(target))]
    return Example(
        id=row_id, task=name, adapter=task.adapter, source="ew", book_id="toy", scene=0, wording=wording,
        messages=messages, input=inp.model_dump_json(),
    )  # fmt: skip


def general_row(adapter, messages, row_id="general:0", train_on="all"):
    return Example(
        id=row_id, task="general", adapter=adapter, source="toy", messages=messages, train_on=train_on
    )


def specimen_rows(adapter, wordings):
    return [
        task_row(name, specimen.input, specimen.target, wording=w, row_id=f"toy:{i}:{name}:{w}:")
        for name, specimens in SPECIMENS.items()
        if TASKS[name].adapter == adapter
        for i, specimen in enumerate(specimens)
        for w in wordings
    ]


def write_rows(data: Path, adapter: str, train: list[Example], validation: list[Example]) -> Path:
    folder = data / adapter
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in (("train", train), ("validation", validation)):
        pq.write_table(
            pa.Table.from_pylist([row.model_dump() for row in rows], ROW_SCHEMA),
            folder / f"{split}.parquet",
            row_group_size=7,
        )
    path = data / "manifest.json"
    manifest = json.loads(path.read_text()) if path.exists() else {"format_version": 1, "counts": {}}
    manifest["toy"] = [row.id for row in train]
    manifest["counts"][adapter] = {
        split: {"all": {"rows": len(rows)}} for split, rows in (("train", train), ("validation", validation))
    }
    path.write_text(json.dumps(manifest))
    return data


def write_toy_data(data: Path) -> Path:
    for adapter in ADAPTERS:
        chat = general_row(adapter, [user("Name a river."), assistant("The Elbe.")])
        write_rows(
            data,
            adapter,
            [*specimen_rows(adapter, range(WORDINGS - 1)), chat],
            specimen_rows(adapter, [WORDINGS - 1]),
        )
    return data
