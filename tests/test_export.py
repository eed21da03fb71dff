"""Exports: every row and every trained turn arrives, in a shape that the other tool reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import SAMPLES

from data_builders.build import BuildSettings, Tally, build
from data_builders.export import export, sentences
from data_builders.write import RowWriter, read_rows
from ewtrain.chat import ADAPTERS, Example, assistant, supervised_turns, system, user
from ewtrain.errors import ConfigError, DataError
from ewtrain.files import write_json

TALK = [system("Be brief."), user("one"), assistant("two"), user("three"), assistant("four")]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("export") / "data"
    general = str(SAMPLES / "general.jsonl")
    build([SAMPLES], out, BuildSettings(), general=general, splits_file=SAMPLES / "splits.json")
    return out


def hand_made(folder: Path, rows: list[Example]) -> Path:
    """A dataset of these rows, all of them World Model training rows."""
    tally = Tally()
    for adapter in ADAPTERS:
        (folder / adapter).mkdir(parents=True)
        for split in ("train", "validation"):
            writer = RowWriter(folder / adapter / f"{split}.parquet")
            for row in rows if (adapter, split) == ("world_model", "train") else []:
                writer.add(row)
                tally.add(split, row)
            writer.close()
    write_json(folder / "manifest.json", {"counts": tally.as_json()})
    return folder


def general(name: str, messages: list, train_on: str = "all") -> Example:
    return Example(
        id=name, task="general", adapter="world_model", source="toy", messages=messages, train_on=train_on
    )


def rows_of(dataset: Path, adapter: str, split: str) -> list[Example]:
    return [Example.model_validate(row) for row in read_rows(dataset / adapter / f"{split}.parquet")]


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def as_llama_factory_reads(folder: Path) -> dict[str, list[list[tuple[str, str]]]]:
    """Each entry's conversations, read by the rules of LLaMA-Factory's ShareGPT converter."""
    read = {}
    for name, entry in json.loads((folder / "dataset_info.json").read_text()).items():
        assert entry["formatting"] == "sharegpt"
        tags, talks = entry["tags"], []
        for record in lines(folder / entry["file_name"]):
            turns = [
                (m[tags["role_tag"]], m[tags["content_tag"]]) for m in record[entry["columns"]["messages"]]
            ]
            start = 1 if turns[0][0] == tags["system_tag"] else 0
            for i, (role, _) in enumerate(turns[start:]):
                assert role == (tags["user_tag"], tags["assistant_tag"])[i % 2], "it would skip this row"
            assert (len(turns) - start) % 2 == 0, "it would skip this row"
            talks.append(turns)
        read[name] = talks
    return read


def test_jsonl_holds_every_row_unchanged_and_in_order(dataset, tmp_path):
    export(dataset, tmp_path / "out", formats=["jsonl"])
    for adapter in ADAPTERS:
        for split in ("train", "validation"):
            exported = [
                Example.model_validate(x) for x in lines(tmp_path / f"out/jsonl/{adapter}/{split}.jsonl")
            ]
            assert exported and exported == rows_of(dataset, adapter, split)
    assert not (tmp_path / "out" / "sharegpt").exists()


def test_llama_factory_reads_every_message_of_every_row(dataset, tmp_path):
    export(dataset, tmp_path / "out")
    read = as_llama_factory_reads(tmp_path / "out" / "sharegpt")
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    assert len(read) == 4
    for adapter in ADAPTERS:
        for split in ("train", "validation"):
            said = [
                [(names[m["role"]], m["content"]) for m in row.messages]
                for row in rows_of(dataset, adapter, split)
            ]
            assert read[f"ewtrain_{adapter}_{split}"] == said


def test_no_trained_turn_is_lost_and_none_is_added(tmp_path):
    rows = [
        general("all", TALK),
        general("last", TALK, "last"),
        general("one turn", TALK[:3], "last"),
        general("no system", TALK[1:], "last"),
    ]
    written = export(hand_made(tmp_path / "data", rows), tmp_path / "out")
    read = as_llama_factory_reads(tmp_path / "out" / "sharegpt")
    assert set(read) == {"ewtrain_world_model_train", "ewtrain_world_model_train_last_turn"}
    # LLaMA-Factory trains all gpt turns; with mask_history, which this entry's run sets, the last of each row.
    trained = sum(role == "gpt" for talk in read["ewtrain_world_model_train"] for role, _ in talk)
    trained += len(read["ewtrain_world_model_train_last_turn"])
    assert trained == sum(len(supervised_turns(row.messages, row.train_on)) for row in rows) == 5
    assert {file.file: file.supervised_turns for file in written if file.format == "sharegpt"} == {
        "sharegpt/world_model_train.jsonl": 3,
        "sharegpt/world_model_train_last_turn.jsonl": 2,
    }
    readme = (tmp_path / "out/sharegpt/README.md").read_text()
    assert "dataset: ewtrain_world_model_train_last_turn\ncutoff_len: 32768\nmask_history: true" in readme
    assert "2 world_model train rows train their last turn alone" in sentences(written)[0]


def test_a_split_without_rows_has_no_file_and_no_entry(tmp_path):
    export(hand_made(tmp_path / "data", [general("a", TALK)]), tmp_path / "out")
    files = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.jsonl")}
    assert files == {"jsonl/world_model/train.jsonl", "sharegpt/world_model_train.jsonl"}


def test_line_separators_in_a_text_do_not_break_its_line(tmp_path):
    text = "a\u2028b\u2029c\x85d\r\ne"
    export(hand_made(tmp_path / "data", [general("a", [user(text), assistant(text)])]), tmp_path / "out")
    (line,) = lines(tmp_path / "out/sharegpt/world_model_train.jsonl")
    assert [m["value"] for m in line["conversations"]] == [text, text]


def test_datasets_reads_the_exported_files(dataset, tmp_path):
    import datasets

    export(dataset, tmp_path / "out")
    for file, columns in (("jsonl/world_model/train.jsonl", list(Example.model_fields)),
                          ("sharegpt/world_model_train.jsonl", ["id", "conversations"])):  # fmt: skip
        read = datasets.load_dataset(
            "json", data_files=str(tmp_path / "out" / file), split="train", cache_dir=str(tmp_path / "cache")
        )
        assert read.column_names == columns
        assert read["id"] == [row.id for row in rows_of(dataset, "world_model", "train")]


def test_a_changed_dataset_is_refused_and_nothing_is_left_behind(tmp_path):
    data = hand_made(tmp_path / "data", [general("a", TALK), general("b", TALK)])
    manifest = json.loads((data / "manifest.json").read_text())
    manifest["counts"]["world_model"]["train"]["general"]["rows"] = 3
    write_json(data / "manifest.json", manifest)
    with pytest.raises(
        DataError, match="holds 2 rows with 4 assistant turns, and the manifest counts 3 with 4"
    ):
        export(data, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_row_that_llama_factory_would_skip_is_refused_for_sharegpt_alone(tmp_path):
    data = hand_made(tmp_path / "data", [general("odd", [user("a"), user("b"), assistant("c")])])
    with pytest.raises(DataError, match="odd: its roles are user, user, assistant"):
        export(data, tmp_path / "out")
    assert export(data, tmp_path / "out", formats=["jsonl"])[0].rows == 1


def test_an_unknown_format_or_a_folder_that_is_not_ours_is_refused(dataset, tmp_path):
    with pytest.raises(ConfigError, match="alpaca is not known; choose from jsonl, sharegpt"):
        export(dataset, tmp_path / "out", formats=["alpaca"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match="not ours"):
        export(dataset, tmp_path / "mine", overwrite=True)
    with pytest.raises(DataError, match="no finished build"):
        export(tmp_path / "mine", tmp_path / "out")
