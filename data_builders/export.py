"""A dataset in other tools' formats: JSON Lines, and ShareGPT with what LLaMA-Factory asks for (contract section 3).

LLaMA-Factory trains every assistant turn of a conversation, or in a run with `mask_history: true` the last
one of each. Rows that train their last turn alone therefore stand in files of their own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal, get_args

from data_builders.build import Progress, manifest_hash, read_manifest
from data_builders.mixture import SPLITS, Split
from data_builders.write import read_rows, whole_folder
from ewtrain.chat import ADAPTERS, Adapter, Example, supervised_turns
from ewtrain.errors import ConfigError, DataError
from ewtrain.files import write_json

Format = Literal["jsonl", "sharegpt"]
FORMATS: tuple[Format, ...] = get_args(Format)
REPORT = "export.json"


_FROM = {"system": "system", "user": "human", "assistant": "gpt"}
_FIELDS = tuple(Example.model_fields)


@dataclass
class Written:
    """A file of an export. `supervised_turns` is what a tool that follows `mask_history` trains."""

    file: str
    format: Format
    adapter: Adapter
    split: Split
    mask_history: bool = False
    rows: int = 0
    assistant_turns: int = 0
    supervised_turns: int = 0

    @property
    def dataset_name(self) -> str:
        """The file's entry in `dataset_info.json`."""
        return f"ewtrain_{Path(self.file).stem}"


def export(
    dataset: Path,
    out: Path,
    *,
    formats: Sequence[str] = FORMATS,
    overwrite: bool = False,
    progress: Progress = lambda stage, done, total: None,
) -> list[Written]:
    """Write a dataset's rows in other formats, and return the files; the folder appears only when it is whole.

    `<out>/jsonl/<adapter>/<split>.jsonl` holds an Example a line. `<out>/sharegpt` is a `dataset_dir` of
    LLaMA-Factory. DataError if the rows are not those that the manifest counts.
    """
    formats = list(dict.fromkeys(formats))
    if unknown := [name for name in formats if name not in FORMATS]:
        raise ConfigError(f"formats: {', '.join(unknown)} is not known; choose from {', '.join(FORMATS)}.")
    manifest = read_manifest(dataset)
    written: list[Written] = []
    with whole_folder(out, marker=REPORT, overwrite=overwrite) as folder:
        for name in formats:
            (folder / name).mkdir()
        for adapter in ADAPTERS:
            for split in SPLITS:
                counted = manifest["counts"].get(adapter, {}).get(split, {})
                written += _export_split(dataset, folder, formats, adapter, split, counted, progress)
        if "sharegpt" in formats:
            write_json(folder / "sharegpt" / "dataset_info.json", dataset_info(written))
            (folder / "sharegpt" / "README.md").write_text(_readme(written), encoding="utf-8")
        files = [asdict(file) for file in written]
        write_json(folder / REPORT, {"manifest_hash": manifest_hash(dataset), "files": files})
    return written


def _export_split(
    dataset: Path,
    folder: Path,
    formats: Sequence[str],
    adapter: Adapter,
    split: Split,
    counted: dict[str, dict[str, int]],
    progress: Progress,
) -> list[Written]:
    total = sum(n["rows"] for n in counted.values())
    jsonl = Written(f"jsonl/{adapter}/{split}.jsonl", "jsonl", adapter, split)
    chats = [
        Written(f"sharegpt/{adapter}_{split}.jsonl", "sharegpt", adapter, split),
        Written(f"sharegpt/{adapter}_{split}_last_turn.jsonl", "sharegpt", adapter, split, mask_history=True),
    ]
    rows = turns = trained = 0
    with ExitStack() as stack:
        files: dict[str, IO[str]] = {}

        def line(to: Written, record: dict[str, Any], num_turns: int, num_trained: int) -> None:
            if to.file not in files:
                path = folder / to.file
                path.parent.mkdir(exist_ok=True)
                files[to.file] = stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))
            files[to.file].write(_json_line(record))
            to.rows += 1
            to.assistant_turns += num_turns
            to.supervised_turns += num_trained

        for row in read_rows(dataset / adapter / f"{split}.parquet"):
            messages = row["messages"]
            num_turns = sum(message["role"] == "assistant" for message in messages)
            num_trained = len(supervised_turns(messages, row["train_on"]))
            if "jsonl" in formats:
                line(jsonl, {name: row[name] for name in _FIELDS}, num_turns, num_trained)
            if "sharegpt" in formats:
                # A single turn is trained either way, so its row may stand with the others.
                to = chats[num_trained < num_turns]
                line(to, {"id": row["id"], "conversations": _conversation(row)}, num_turns, num_trained)
            rows, turns, trained = rows + 1, turns + num_turns, trained + num_trained
            if rows % 1000 == 0 or rows == total:
                progress(f"writing {adapter} {split}", rows, total)
    wanted = total, sum(n["assistant_turns"] for n in counted.values())
    if (rows, turns) != wanted:
        raise DataError(
            f"{dataset}: {adapter} {split} holds {rows:,} rows with {turns:,} assistant turns, and the manifest counts "
            f"{wanted[0]:,} with {wanted[1]:,}. The folder was changed: build it again."
        )
    made = [file for file in (jsonl, *chats) if file.rows]
    for name in formats:
        assert sum(file.supervised_turns for file in made if file.format == name) == trained
    return made


def _json_line(record: dict[str, Any]) -> str:
    text = json.dumps(record, ensure_ascii=False)
    # Line ends to some readers of JSON Lines, and to str.splitlines; JSON itself allows them raw.
    for char, escaped in (("\u2028", "\\u2028"), ("\u2029", "\\u2029"), ("\x85", "\\u0085")):
        text = text.replace(char, escaped)
    return text + "\n"


def _conversation(row: dict[str, Any]) -> list[dict[str, str]]:
    """Return a row as ShareGPT: one `system` at most, then human and gpt in turn, gpt last."""
    roles = [message["role"] for message in row["messages"]]
    turns = roles[1:] if roles[:1] == ["system"] else roles
    if not turns or len(turns) % 2 or turns != ["user", "assistant"] * (len(turns) // 2):
        raise DataError(
            f"{row['id']}: its roles are {', '.join(roles)}, and LLaMA-Factory skips a row in which user and assistant "
            "do not take turns. Build the dataset again, or export --formats jsonl."
        )
    return [{"from": _FROM[m["role"]], "value": m["content"]} for m in row["messages"]]


def dataset_info(written: Sequence[Written]) -> dict[str, Any]:
    """Return LLaMA-Factory's `dataset_info.json`: an entry for each ShareGPT file."""
    return {
        file.dataset_name: {
            "file_name": Path(file.file).name,
            "formatting": "sharegpt",
            "columns": {"messages": "conversations"},
            "tags": {
                "role_tag": "from",
                "content_tag": "value",
                "user_tag": _FROM["user"],
                "assistant_tag": _FROM["assistant"],
                "system_tag": _FROM["system"],
            },
        }
        for file in written
        if file.format == "sharegpt"
    }


def sentences(written: Sequence[Written]) -> list[str]:
    """Return what a user should know of an export beyond its counts, a sentence each."""
    return [
        f"{file.rows:,} {file.adapter} {file.split} rows train their last turn alone ({file.supervised_turns:,} of "
        f"{file.assistant_turns:,} assistant turns): {file.file} is for a run with mask_history: true."
        for file in written
        if file.mask_history
    ]


def _readme(written: Sequence[Written]) -> str:
    chats = [file for file in written if file.format == "sharegpt"]
    table = "\n".join(
        f"| `{file.dataset_name}` | {file.rows:,} | {file.assistant_turns:,} | {file.supervised_turns:,} | "
        f"{'`mask_history: true`' if file.mask_history else ''} |"
        for file in chats
    )
    runs = []
    for adapter in ADAPTERS:
        for mask in (False, True):
            names = {f.split: f.dataset_name for f in chats if (f.adapter, f.mask_history) == (adapter, mask)}
            if "train" in names:
                lines = ["dataset_dir: .", f"dataset: {names['train']}"]
                lines += [f"eval_dataset: {names['validation']}"] if "validation" in names else []
                lines += ["cutoff_len: 32768"] + (["mask_history: true"] if mask else [])
                runs.append("```yaml\n" + "\n".join(lines) + "\n```")
    return (
        "# ShareGPT, for LLaMA-Factory\n\n"
        "| dataset | rows | assistant turns | trained turns | set in the run |\n"
        f"| --- | ---: | ---: | ---: | --- |\n{table}\n\n"
        "One adapter a run:\n\n" + "\n\n".join(runs) + "\n\n"
        "LLaMA-Factory's `cutoff_len` is 2048 unless set, and longer rows are cut inside a turn without a word; "
        "`ewtrain stats` says how long they are. `mask_history` holds for a whole run, so the rows of a `_last_turn` "
        "dataset want a run of their own, or are left out.\n"
    )
