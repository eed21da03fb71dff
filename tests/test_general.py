"""General chat rows: every row is kept or refused by reason, and an adapter draws without hidden repeats."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from data_builders.chat_dialects import Refused, normalise
from data_builders.general import Draw, GeneralPool, draw, general_example
from ewtrain.chat import supervised_turns
from ewtrain.errors import DataError

TRIAL = Path(os.environ.get("EWTRAIN_TRIAL_DATA") or Path(__file__).parents[2] / "shared" / "data")
needs_trial_data = pytest.mark.skipif(
    not TRIAL.is_dir(), reason=f"no trial data at {TRIAL}; EWTRAIN_TRIAL_DATA names the folder"
)


def row(*turns: str, **fields: object) -> dict:
    """`row("U: hi", "A: hello")`: a row of the messages dialect."""
    roles = {"S": "system", "U": "user", "A": "assistant", "T": "tool"}
    return {"messages": [{"role": roles[t[0]], "content": t[3:]} for t in turns], **fields}


def shown(messages: list) -> list[str]:
    return [f"{message['role'][0].upper()}: {message['content']}" for message in messages]


def refusal(raw: object) -> Refused:
    with pytest.raises(Refused) as caught:
        normalise(raw)
    return caught.value


def write_jsonl(path: Path, rows: list) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def good(i: int) -> dict:
    return row(f"U: question {i}", f"A: answer {i}")


def refused_counts(pool: GeneralPool) -> dict[str, int]:
    return {reason: entry["count"] for reason, entry in pool.report["refused"].items()}


def assert_nothing_vanished(pool: GeneralPool) -> None:
    assert pool.report["read"] == pool.report["kept"] + sum(refused_counts(pool).values())
    assert len(pool) == pool.report["kept"]


# --- one row ---------------------------------------------------------------------------------------------

TABLE_NULLS = dict.fromkeys(["role", "content", "tool_calls", "weight", "images"])
SAME_ROW = [
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]},
    {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]},
    {"conversations": [{"from": "user", "value": "hi"}, {"from": "chatgpt", "value": "hello"}]},
    {"conversations": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]},
    {"conversation": [{"human": "hi", "assistant": "hello"}]},
    {"conversation": [{"assistant": "hello", "human": "hi"}]},
    {"messages": [{"role": "user", "content": " hi\n"}, {"role": "Assistant", "content": "\nhello "}]},
    {"messages": [], "conversations": [{"from": "human", "value": "hi"}, {"from": "bot", "value": "hello"}]},
    {
        "messages": None,
        "conversations": [
            {"from": "human", "value": "hi", **TABLE_NULLS},
            {"from": "gpt", "value": "hello", **TABLE_NULLS},
        ],
    },
    {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
            {"role": "assistant", "content": [{"type": "text", "value": "hel"}, "lo"]},
        ]
    },
]


@pytest.mark.parametrize("raw", SAME_ROW)
def test_every_dialect_gives_the_same_messages(raw):
    assert normalise(raw) == (
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}],
        "all",
        [],
    )


def test_row_h27_sharegpt_roles_are_mapped():
    turns = [("developer", "s"), ("human", "q"), ("gpt", "a"), ("user", "r"), ("assistant", "b")]
    raw = {"conversations": [{"from": role, "value": value} for role, value in turns]}
    assert shown(normalise(raw).messages) == ["S: s", "U: q", "A: a", "U: r", "A: b"]


def test_row_h27_an_unknown_role_is_refused_with_its_row_and_the_role(tmp_path):
    bad = {"conversations": [{"from": "human", "value": "q"}, {"from": "narrator", "value": "a"}]}
    pool = GeneralPool.read(write_jsonl(tmp_path / "g.jsonl", [good(1), bad]), tmp_path / "work")
    entry = pool.report["refused"]["unknown_role"]
    assert entry["examples"] == ["g.jsonl:2"]
    assert "conversations[1]" in entry["details"][0] and "'narrator'" in entry["details"][0]
    assert len(pool) == 1


SYSTEM_POLICY = [
    (["S: a", "S: b", "U: q", "A: r"], ["S: a\n\nb", "U: q", "A: r"], ["system_merged"]),
    (["U: q", "S: c", "A: r"], ["S: c", "U: q", "A: r"], ["system_merged"]),
    (["S: a", "U: q", "S: b", "A: r"], ["S: a\n\nb", "U: q", "A: r"], ["system_merged"]),
    (["S: a", "U: q", "A: r"], ["S: a", "U: q", "A: r"], []),
    (["S: ", "U: q", "A: r"], ["U: q", "A: r"], ["empty_system_dropped"]),
    (["S: ", "S: b", "U: q", "A: r"], ["S: b", "U: q", "A: r"], ["empty_system_dropped"]),
]


@pytest.mark.parametrize("turns, wanted, notes", SYSTEM_POLICY)
def test_row_h31_system_messages_become_one_leading_message_in_order(turns, wanted, notes):
    result = normalise(row(*turns))
    assert (shown(result.messages), result.notes) == (wanted, notes)


def test_a_system_text_beside_the_messages_leads_them():
    assert shown(normalise(row("U: q", "A: r", system=" s ")).messages) == ["S: s", "U: q", "A: r"]
    both = normalise(row("S: inner", "U: q", "A: r", system="outer"))
    assert shown(both.messages)[0] == "S: outer\n\ninner" and both.notes == ["system_merged"]


def test_row_h75_all_pairs_of_a_conversation_are_kept_and_supervised():
    pairs = [{"human": f"q{i}", "assistant": f"a{i}"} for i in range(3)]
    turns = [turn for pair in pairs for turn in ({"from": k, "value": v} for k, v in pair.items())]
    for raw in ({"conversations": turns}, {"conversation": pairs}):
        result = normalise(raw)
        assert shown(result.messages) == ["U: q0", "A: a0", "U: q1", "A: a1", "U: q2", "A: a2"]
        assert len(supervised_turns(result.messages, result.train_on)) == 3


def test_a_trailing_user_turn_is_cut_and_noted():
    result = normalise(row("U: q", "A: r", "U: more"))
    assert (shown(result.messages), result.notes) == (["U: q", "A: r"], ["trailing_user_turn_cut"])


REFUSED = {
    "a list": ([1], "not_an_object"),
    "null": (None, "not_an_object"),
    "no known field": ({"instruction": "q", "output": "a"}, "no_messages"),
    "empty list": ({"messages": []}, "no_messages"),
    "role missing": ({"messages": [{"content": "q"}]}, "unknown_role"),
    "role a number": ({"messages": [{"role": 1, "content": "q"}]}, "bad_type"),
    "tool turn": (row("U: q", "A: r", "T: t", "A: s"), "tool_role"),
    "sharegpt tool": ({"conversations": [{"from": "function_call", "value": "f()"}]}, "tool_role"),
    "tool calls": ({"messages": [{"role": "assistant", "tool_calls": [{"id": 1}]}]}, "tool_role"),
    "tool in pair": ({"conversation": [{"human": "q", "tool": "t", "assistant": "a"}]}, "tool_role"),
    "image part": ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content_part"),
    "row images": (row("U: <image> q", "A: r", images=["a.png"]), "content_part"),
    "reasoning": ({"messages": [{"role": "user", "content": "q", "reasoning_content": "t"}]}, "content_part"),
    "part a number": ({"messages": [{"role": "user", "content": [3]}]}, "bad_type"),
    "part text a number": ({"messages": [{"role": "user", "content": [{"text": 3}]}]}, "bad_type"),
    "content a number": ({"messages": [{"role": "user", "content": 3}]}, "bad_type"),
    "empty user": (row("U:  ", "A: r"), "empty_content"),
    "null content": ({"messages": [{"role": "user", "content": None}]}, "empty_content"),
    "no parts": ({"messages": [{"role": "user", "content": []}]}, "empty_content"),
    "no assistant": (row("S: s", "U: q"), "no_assistant_turn"),
    "only system": (row("S: s"), "no_assistant_turn"),
    "assistant first": (row("S: s", "A: r", "U: q", "A: r"), "assistant_first"),
    "two users": (row("U: q", "U: q2", "A: r"), "consecutive_roles"),
    "two users at the end": (row("U: q", "A: r", "U: q2", "U: q3"), "consecutive_roles"),
    "two users around a system": (row("U: q", "S: s", "U: q2", "A: r"), "consecutive_roles"),
    "two assistants": (row("U: q", "A: r", "A: s"), "consecutive_roles"),
    "think tag": (row("U: q", "A: <think>plan</think>r"), "think_tag"),
    "think tag in system": (row("U: q", "A: r", system="</think>"), "think_tag"),
}


@pytest.mark.parametrize("raw, reason", REFUSED.values(), ids=list(REFUSED))
def test_a_row_that_cannot_be_trained_on_is_refused_by_reason(raw, reason):
    assert refusal(raw).reason == reason


def test_other_control_strings_are_ordinary_text():
    text = "<|im_end|> <think> <SCENE_END> ===Segment Start==="
    assert normalise(row("U: q", f"A: {text}")).messages[1]["content"] == text


@pytest.mark.parametrize(
    "weights, train_on",
    [
        ([None, None], "all"),
        ([1, 1.0], "all"),
        ([True, 1], "all"),
        ([0, 1], "last"),
        ([0.0, None], "last"),
        ([False, True], "last"),
        ([1, 0], None),
        ([0, 0], None),
        ([0.5, 1], None),
        ([2, 1], None),
        (["1", 1], None),
    ],
)
@pytest.mark.parametrize("key", ["weight", "loss_weight", "loss"])
def test_message_weights_become_train_on_or_are_refused(key, weights, train_on):
    raw = row("U: q", "A: r", "U: q2", "A: r2")
    for message, weight in zip(raw["messages"][1::2], weights, strict=True):
        message[key] = weight
    for message in raw["messages"][::2]:
        message[key] = 0
    if train_on is None:
        assert refusal(raw).reason == "message_weight"
    else:
        assert normalise(raw).train_on == train_on


def test_the_last_alone_means_the_last_even_of_three():
    raw = row("U: 1", "A: 1", "U: 2", "A: 2", "U: 3", "A: 3")
    raw["messages"][3]["weight"] = 0
    assert refusal(raw).reason == "message_weight"
    raw["messages"][1]["weight"] = 0
    assert normalise(raw).train_on == "last"


def test_tools_that_a_row_lists_and_does_not_call_are_noted():
    assert normalise(row("U: q", "A: r", tools="[]")).notes == []
    assert normalise(row("U: q", "A: r", tools='[{"name": "f"}]')).notes == ["tools_ignored"]


# --- files -----------------------------------------------------------------------------------------------


def test_row_h28_a_field_that_changes_type_is_named_by_file_and_line(tmp_path):
    listed = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
    path = write_jsonl(tmp_path / "mixed.jsonl", [listed, {"conversations": "q"}, good(1)])
    pool = GeneralPool.read(path, tmp_path / "work")
    assert pool.report["refused"] == {
        "bad_type": {
            "count": 1,
            "examples": ["mixed.jsonl:2"],
            "details": ["'conversations' is text, wanted a list"],
        }
    }
    assert len(pool) == 2
    with pytest.raises(DataError, match=r"mixed\.jsonl:2: bad_type: 'conversations' is text"):
        GeneralPool.read(path, tmp_path / "work", strict=True)


def test_row_h29_a_lone_surrogate_is_refused_and_the_built_file_can_be_written(tmp_path):
    path = tmp_path / "s.jsonl"
    broken = json.dumps(row("U: q", "A: a\ud83d b"))
    raw_bytes = json.dumps(row("U: q", "A: a\ud83d b"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    key = json.dumps({"\ud83d": 1})
    path.write_bytes(b"\n".join([broken.encode(), raw_bytes, key.encode(), json.dumps(good(1)).encode()]))
    pool = GeneralPool.read(path, tmp_path / "work")
    assert refused_counts(pool) == {"lone_surrogate": 2, "no_messages": 1}
    assert pool.report["refused"]["lone_surrogate"]["examples"] == ["s.jsonl:1", "s.jsonl:2"]
    json.dumps([pool[0], pool.report], ensure_ascii=False).encode()


def test_a_whole_surrogate_pair_is_an_ordinary_character(tmp_path):
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps(row("U: q", "A: \U0001f600"), ensure_ascii=True))
    assert "\\ud83d\\ude00" in path.read_text()
    assert GeneralPool.read(path, tmp_path / "work")[0].messages[1]["content"] == "\U0001f600"


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_row_h30_one_entry_that_is_no_object_costs_one_row(tmp_path, suffix):
    bad = {"conversations": [{"from": "human", "value": "a"}, 7, {"from": "gpt", "value": "b"}]}
    rows = [*map(good, range(50)), bad, *map(good, range(50, 100))]
    path = write_jsonl(tmp_path / "g.jsonl", rows)
    if suffix == ".json":
        path = tmp_path / "g.json"
        path.write_text("[" + ",\n".join(map(json.dumps, rows)) + "]")
    pool = GeneralPool.read(path, tmp_path / "work")
    assert (pool.report["read"], len(pool), refused_counts(pool)) == (101, 100, {"bad_type": 1})
    assert pool.report["refused"]["bad_type"]["examples"] == [f"g{suffix}:51"]
    assert "conversations[1] is a number" in pool.report["refused"]["bad_type"]["details"][0]


def test_row_h32_a_reason_is_one_summary_with_three_examples_not_a_line_a_row(tmp_path, capfd):
    rows = [row(f"U: {i}") if i % 5 < 2 else good(i) for i in range(1000)]
    pool = GeneralPool.read(write_jsonl(tmp_path / "g.jsonl", rows), tmp_path / "work")
    (reason, entry), *others = pool.report["refused"].items()
    assert (reason, entry["count"], others) == ("no_assistant_turn", 400, [])
    assert entry["examples"] == ["g.jsonl:1", "g.jsonl:2", "g.jsonl:6"]
    assert len(pool) == 600
    assert capfd.readouterr() == ("", "")


def test_row_h32_rows_that_end_with_a_user_turn_are_cut_and_counted_once(tmp_path):
    rows = [row(f"U: {i}", "A: r", *(["U: more"] if i < 400 else [])) for i in range(1000)]
    pool = GeneralPool.read(write_jsonl(tmp_path / "g.jsonl", rows), tmp_path / "work")
    assert (len(pool), pool.report["notes"]) == (1000, {"trailing_user_turn_cut": 400})


def test_a_line_that_is_no_json_is_counted_and_the_others_load(tmp_path):
    path = tmp_path / "g.jsonl"
    lines = [json.dumps(good(1)), '{"messages": [', "", "[" * 100_000, json.dumps(good(2)), '{"a": "\xff"}']
    path.write_bytes("\n".join(lines).encode("latin-1"))
    pool = GeneralPool.read(path, tmp_path / "work")
    assert refused_counts(pool) == {"not_json": 3}
    assert pool.report["refused"]["not_json"]["examples"] == ["g.jsonl:2", "g.jsonl:4", "g.jsonl:6"]
    assert [r.messages[0]["content"] for r in pool] == ["question 1", "question 2"]


def test_lines_end_at_a_newline_only(tmp_path):
    text = "one\u2028two\x0cthree"
    path = tmp_path / "g.jsonl"
    path.write_text(json.dumps(row("U: q", f"A: {text}"), ensure_ascii=False) + "\r\n", encoding="utf-8")
    assert GeneralPool.read(path, tmp_path / "work")[0].messages[1]["content"] == text


def test_strict_lists_the_first_refused_rows_with_the_total_and_allows_duplicates(tmp_path):
    path = write_jsonl(tmp_path / "g.jsonl", [good(1), *([row("U: q")] * 30)])
    with pytest.raises(DataError, match="30 of 31 rows cannot be used; the first 20 of them") as caught:
        GeneralPool.read(path, tmp_path / "work", strict=True)
    assert str(caught.value).count("no_assistant_turn") == 20
    assert list((tmp_path / "work").iterdir()) == []
    path = write_jsonl(tmp_path / "twice.jsonl", [good(1), good(1)])
    assert len(GeneralPool.read(path, tmp_path / "work", strict=True)) == 1


def test_rows_of_the_same_content_are_kept_once(tmp_path):
    spaced = row("U:  question 1", "A: answer 1\n", id=17)
    pairs = {"conversation": [{"human": "question 1", "assistant": "answer 1"}]}
    path = write_jsonl(tmp_path / "g.jsonl", [good(1), good(2), spaced, pairs])
    pool = GeneralPool.read(path, tmp_path / "work")
    assert [r.messages[0]["content"] for r in pool] == ["question 1", "question 2"]
    assert pool.report["refused"]["duplicate"]["examples"] == ["g.jsonl:3", "g.jsonl:4"]
    assert_nothing_vanished(pool)


SUFFIXES = [".jsonl", ".json", ".jsonl.gz", ".json.gz", ".jsonl.zst", ".json.zst", ".parquet", ".JSONL.GZ"]


@pytest.mark.parametrize("name", [f"a{suffix}" for suffix in SUFFIXES])
def test_every_kind_of_file_gives_the_same_pool(tmp_path, name):
    rows = [row("S: s", "U: q", "A: r"), good(2)]
    text = json.dumps(rows, indent=1) if name.startswith("a.json") else ""
    if ".jsonl" in name.lower():
        text = "\n".join(map(json.dumps, rows))
    path = tmp_path / name
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif name.lower().endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    elif name.endswith(".zst"):
        # Two frames, as parallel compressors write them.
        frames = [zstandard.compress(half.encode()) for half in (text[:40], text[40:])]
        path.write_bytes(b"".join(frames))
    else:
        path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    pool = GeneralPool.read(path, tmp_path / "work")
    assert [shown(r.messages) for r in pool] == [["S: s", "U: q", "A: r"], ["U: question 2", "A: answer 2"]]
    assert (pool.source, pool.report["source"]) == ("a", "a")


def test_a_json_file_may_hold_one_row_or_rows_one_after_another(tmp_path):
    (tmp_path / "one.json").write_text(json.dumps(good(1), indent=2))
    (tmp_path / "lines.json").write_text(json.dumps(good(1)) + "\n" + json.dumps(good(2)) + "\n")
    assert len(GeneralPool.read(tmp_path / "one.json", tmp_path / "work")) == 1
    assert len(GeneralPool.read(tmp_path / "lines.json", tmp_path / "work")) == 2


def test_a_table_of_mixed_dialects_is_read_past_its_nulls(tmp_path):
    sharegpt = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
    rows = [good(1), sharegpt, row("U: q")]
    schema = pa.schema(
        [
            ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
            ("conversations", pa.list_(pa.struct([("from", pa.string()), ("value", pa.string())]))),
        ]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), tmp_path / "t.parquet")
    pool = GeneralPool.read(tmp_path / "t.parquet", tmp_path / "work")
    assert len(pool) == 2
    assert pool.report["refused"]["no_assistant_turn"]["examples"] == ["t.parquet:2"]


def test_a_folder_is_read_in_name_order_and_says_what_it_left_out(tmp_path):
    folder = tmp_path / "My Chats"
    (folder / "sub").mkdir(parents=True)
    (folder / ".cache").mkdir()
    write_jsonl(folder / "b.jsonl", [good(3)])
    write_jsonl(folder / "sub" / "a.jsonl", [good(4), row("U: q")])
    write_jsonl(folder / "a.jsonl", [good(1), good(2)])
    write_jsonl(folder / ".cache" / "a.jsonl", [good(9)])
    (folder / "README.md").write_text("about")
    pool = GeneralPool.read(str(folder), tmp_path / "work")
    assert [r.messages[0]["content"] for r in pool] == [f"question {i}" for i in (1, 2, 3, 4)]
    assert pool.report["files"] == ["a.jsonl", "b.jsonl", "sub/a.jsonl"]
    assert pool.report["ignored_files"] == ["README.md"]
    assert pool.report["refused"]["no_assistant_turn"]["examples"] == ["sub/a.jsonl:2"]
    assert pool.source == "my-chats"


def test_a_source_named_ew_does_not_take_the_timelines_name(tmp_path):
    path = write_jsonl(tmp_path / "ew.jsonl", [good(1)])
    assert GeneralPool.read(path, tmp_path / "work").source == "general"


UNREADABLE = {
    "g.json": (b'[{"messages": []}, ', "no JSON"),
    "tail.json": (b"[1] x", "no JSON"),
    "comma.json": (b"[1 2]", "no JSON"),
    "word.json": (b"hello", "no JSON"),
    "latin.json": (b'["\xff"]', "no JSON"),
    "page.json": (b"\n<!DOCTYPE html><html></html>", "web page"),
    "page.jsonl": (b"\n<html>\n<body>\n", "web page"),
    "empty.jsonl": (b"", "holds no rows"),
    "blank.json": (b" \n", "holds no rows"),
    "none.json": (b"[]", "holds no rows"),
    "g.parquet": (b"PAR1 not really", "cannot be read as .parquet"),
    "g.jsonl.gz": (gzip.compress(b'{"a": 1}\n' * 9)[:-9], "cannot be read as .jsonl"),
    "g.jsonl.zst": (b"no zstd at all", "cannot be read as .jsonl"),
    "cut.jsonl.zst": (zstandard.compress(b'{"a": 1}\n' * 9)[:-1], "cannot be read as .jsonl"),
    "cut.json.gz": (gzip.compress(b"[1, 2]")[:-1], "cannot be read as .json"),
    "g.csv": (b"a,b", "wanted .jsonl"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_is_no_chat_data_is_an_error_that_names_it(tmp_path, name):
    content, message = UNREADABLE[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        GeneralPool.read(tmp_path / name, tmp_path / "work")
    assert name in str(caught.value)
    assert list(tmp_path.glob("work/*")) == []


def test_what_is_neither_there_nor_a_hub_id_is_an_error_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: pytest.fail("the Hub was asked"))
    (tmp_path / "empty").mkdir()
    for source in ("no such/folder/at all", "data/missing.jsonl", tmp_path / "gone", tmp_path / "empty"):
        with pytest.raises(DataError, match="--general PATH"):
            GeneralPool.read(source, tmp_path / "work")


def test_a_pool_still_reads_its_rows_after_its_file_is_written_anew(tmp_path):
    path = write_jsonl(tmp_path / "g.jsonl", [good(i) for i in range(100)])
    first = GeneralPool.read(path, tmp_path / "work")
    second = GeneralPool.read(write_jsonl(path, [good(7)]), tmp_path / "work")
    assert (len(first), len(second)) == (100, 1)
    assert first[99].messages[0]["content"] == "question 99"


def test_rows_past_one_batch_keep_their_order(tmp_path):
    told: list[int] = []
    path = write_jsonl(tmp_path / "g.jsonl", [good(i) for i in range(10_001)])
    pool = GeneralPool.read(path, tmp_path / "work", progress=told.append)
    assert told == [10_000, 10_001]
    assert [pool[i].messages[0]["content"] for i in (0, 4095, 4096, 10_000)] == [
        f"question {i}" for i in (0, 4095, 4096, 10_000)
    ]
    with pytest.raises(IndexError):
        pool[10_001]


# --- the Hub ---------------------------------------------------------------------------------------------


def test_a_hub_id_reads_the_train_split(tmp_path, monkeypatch):
    import datasets

    asked = []

    def load_dataset(path, **options):
        asked.append((path, options))
        return datasets.Dataset.from_list([good(1), row("U: q"), good(2), row("A: r")])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    pool = GeneralPool.read("allenai/tulu-3-sft-mixture", tmp_path / "work")
    assert asked == [("allenai/tulu-3-sft-mixture", {"split": "train", "streaming": False})]
    assert pool.source == "tulu3"
    assert [r.messages[0]["content"] for r in pool] == ["question 1", "question 2"]
    assert pool.report["refused"]["no_assistant_turn"]["examples"] == ["allenai/tulu-3-sft-mixture:1"]
    assert pool.report["refused"]["assistant_first"]["examples"] == ["allenai/tulu-3-sft-mixture:3"]
    assert GeneralPool.read("Someone/Chat.Rows", tmp_path / "work").source == "chat-rows"


def test_a_hub_that_cannot_be_reached_says_to_pass_a_local_path(tmp_path, monkeypatch):
    import datasets

    def load_dataset(path, **options):
        raise ConnectionError(f"Couldn't reach '{path}' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError, match=r"allenai/tulu-3-sft-mixture: .* Pass a local .* --general PATH"):
        GeneralPool.read("allenai/tulu-3-sft-mixture", tmp_path / "work")
    empty = datasets.Dataset.from_dict({"messages": []})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: empty)
    with pytest.raises(DataError, match="holds no rows"):
        GeneralPool.read("owner/empty", tmp_path / "work")


# --- the draw --------------------------------------------------------------------------------------------


def indices(pairs: list[tuple[int, int]]) -> list[int]:
    return [i for i, _ in pairs]


def test_a_large_pool_is_drawn_without_replacement_and_held_out_rows_are_not_trained_on():
    drawn = draw(1000, 90, 10, seed=0, adapter="world_model")
    assert (len(drawn.train), len(drawn.validation), drawn.passes, drawn.shortfall) == (90, 10, 1, 0)
    assert len({*indices(drawn.train), *indices(drawn.validation)}) == 100
    assert {k for _, k in drawn.train + drawn.validation} == {0}


def test_validation_is_the_shuffled_pools_head_whatever_train_asks_for():
    small = draw(1000, 50, 10, seed=0, adapter="world_model")
    large = draw(1000, 990, 10, seed=0, adapter="world_model")
    assert small.validation == large.validation
    assert small.train == large.train[:50]


def test_mix_h24_a_small_pool_is_repeated_in_passes_and_says_so():
    drawn = draw(10, 100, 10, seed=0, adapter="world_model")
    assert (len(drawn.train), len(drawn.validation), drawn.passes, drawn.shortfall) == (100, 1, 12, 9)
    counts = Counter(indices(drawn.train))
    assert set(counts) == set(range(10)) - set(indices(drawn.validation))
    assert Counter(counts.values()) == {11: 8, 12: 1}
    assert len(set(drawn.train)) == 100, "a pair (row, k) is an id, and ids are unique"
    passes = [indices(drawn.train[at : at + 9]) for at in range(0, 99, 9)]
    assert all(len(set(one_pass)) == 9 for one_pass in passes), "a pass repeats nothing"
    assert [k for _, k in drawn.train] == [at // 9 for at in range(100)]
    assert len(set(map(tuple, passes))) > 1, "each pass is newly shuffled"


@pytest.mark.parametrize(
    "pool_size, num_train, num_validation, lengths",
    [
        # (train, validation, passes, shortfall)
        (0, 5, 2, (0, 0, 0, 2)),
        (1, 5, 1, (5, 0, 5, 1)),
        (2, 5, 1, (5, 1, 5, 0)),
        (2, 5, 0, (5, 0, 3, 0)),
        (4, 9, 3, (9, 1, 3, 2)),
        (14, 20, 9, (20, 1, 2, 8)),
        (15, 20, 9, (20, 2, 2, 7)),
        (15, 20, 1, (20, 1, 2, 0)),
        (100, 95, 10, (95, 10, 2, 0)),
        (100, 10, 95, (10, 10, 1, 85)),
        (10, 9, 1, (9, 1, 1, 0)),
        (10, 5, 5, (5, 5, 1, 0)),
        (10, 0, 3, (0, 3, 0, 0)),
        (10, 0, 0, (0, 0, 0, 0)),
    ],
)
def test_a_small_pool_holds_out_a_tenth_at_most(pool_size, num_train, num_validation, lengths):
    drawn = draw(pool_size, num_train, num_validation, seed=3, adapter="character_agent")
    assert (len(drawn.train), len(drawn.validation), drawn.passes, drawn.shortfall) == lengths
    assert not set(indices(drawn.train)) & set(indices(drawn.validation))
    assert len(set(indices(drawn.validation))) == len(drawn.validation)


def test_the_draw_depends_on_seed_and_adapter_alone():
    first = draw(100, 20, 5, seed=0, adapter="world_model")
    assert draw(100, 20, 5, seed=0, adapter="world_model") == first
    assert draw(100, 20, 5, seed=1, adapter="world_model") != first
    assert draw(100, 20, 5, seed=0, adapter="character_agent") != first
    # Written down once: on another machine, or with another numpy, it has to be the same.
    pinned = Draw([(3, 0), (7, 0), (0, 0), (6, 0)], [(1, 0), (4, 0)], passes=1, shortfall=0)
    assert draw(10, 4, 2, seed=0, adapter="world_model") == pinned


def test_mix_h26_a_conversation_is_never_on_both_sides(tmp_path):
    rows = [row(f"S: wording {j}", f"U: question {i}", f"A: answer {i}") for i in range(20) for j in range(3)]
    pool = GeneralPool.read(write_jsonl(tmp_path / "g.jsonl", rows), tmp_path / "work")
    assert len(pool) == 60 and len(set(pool.conversations.tolist())) == 20
    drawn = draw(len(pool), 200, 6, seed=0, adapter="world_model", conversations=pool.conversations)
    trained = {pool[i].messages[-1]["content"] for i in indices(drawn.train)}
    held_out = {pool[i].messages[-1]["content"] for i in indices(drawn.validation)}
    assert trained and held_out and not trained & held_out
    assert len(drawn.train) == 200 and len(drawn.validation) == 6
    assert drawn.set_aside == 60 - 6 - len(set(indices(drawn.train))) > 0
    without = draw(len(pool), 200, 6, seed=0, adapter="world_model")
    assert without.validation == drawn.validation and without.set_aside == 0


def test_rows_of_one_conversation_are_known_by_what_follows_the_system_message(tmp_path):
    rows = [good(1), row("S: s", "U: question 1", "A: answer 1"), row("S: s", "U: question 2", "A: answer 2")]
    pool = GeneralPool.read(write_jsonl(tmp_path / "g.jsonl", rows), tmp_path / "work")
    assert pool.conversations.dtype == np.uint64
    assert pool.conversations[0] == pool.conversations[1] != pool.conversations[2]


def test_mix_h73_sources_of_different_length_give_every_row_once(tmp_path):
    folder = tmp_path / "three"
    folder.mkdir()
    for name, size in (("a", 2), ("b", 5), ("c", 3)):
        write_jsonl(folder / f"{name}.jsonl", [row(f"U: {name}{i}", "A: r") for i in range(size)])
    pool = GeneralPool.read(folder, tmp_path / "work")
    drawn = draw(len(pool), 10, 0, seed=0, adapter="world_model", conversations=pool.conversations)
    questions = sorted(pool[i].messages[0]["content"] for i in indices(drawn.train))
    assert questions == ["a0", "a1", "b0", "b1", "b2", "b3", "b4", "c0", "c1", "c2"]


def test_an_example_is_named_by_source_content_and_repeat(tmp_path):
    raw = row("U: q", "A: r", "U: é", "A: s")
    raw["messages"][1]["weight"] = 0
    pool = GeneralPool.read(write_jsonl(tmp_path / "g.jsonl", [good(1), raw]), tmp_path / "work")
    canonical = (
        '[{"content":"q","role":"user"},{"content":"r","role":"assistant"},'
        '{"content":"é","role":"user"},{"content":"s","role":"assistant"}]'
    )
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:16]
    example = general_example(pool, 1, 2, "character_agent")
    assert example.id == f"g:{digest}:2"
    assert (example.task, example.adapter, example.source) == ("general", "character_agent", "g")
    assert (shown(example.messages), example.train_on) == (["U: q", "A: r", "U: é", "A: s"], "last")
    assert example.book_id is example.scene is example.input is None


def test_two_readings_of_the_same_rows_give_the_same_file_and_digest(tmp_path):
    path = write_jsonl(tmp_path / "g.jsonl", [good(i) for i in range(20)])
    first, second = (GeneralPool.read(path, tmp_path / work) for work in ("one", "two"))
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.report == second.report
    path = write_jsonl(tmp_path / "g.jsonl", [good(i) for i in range(21)])
    assert GeneralPool.read(path, tmp_path / "one").report["digest"] != first.report["digest"]


# --- the trial files -------------------------------------------------------------------------------------

# file: (rows read, kept, notes, refused)
TRIAL_FILES = {
    "coser/sft_sharegpt_othello_lear.json.gz": (434, 409, {"trailing_user_turn_cut": 300}, {"duplicate": 25}),
    "general_sft/axolotl_conversation.sharegpt.json": (1, 1, {}, {}),
    "general_sft/lf_dataset_info.json": (1, 0, {}, {"no_messages": 1}),
    "general_sft/lf_glaive_toolcall_en_demo.sharegpt.json": (
        300,
        127,
        {"tools_ignored": 38},
        {"duplicate": 20, "tool_role": 153},
    ),
    "general_sft/lf_v1_sft_demo.messages.jsonl": (500, 499, {}, {"duplicate": 1}),
    "general_sft/swift_chatml.jsonl": (3, 3, {}, {}),
    "general_sft/swift_conversations.jsonl": (3, 3, {}, {}),
    "general_sft/swift_sharegpt.jsonl": (3, 3, {}, {}),
    "general_sft/tinker_conversations.messages.jsonl": (128, 128, {}, {}),
    "general_sft": (939, 760, {"tools_ignored": 38}, {"duplicate": 25, "no_messages": 1, "tool_role": 153}),
}


@needs_trial_data
def test_every_trial_file_of_chat_rows_is_counted_below():
    listed = {name for name in TRIAL_FILES if name.startswith("general_sft/")}
    assert {f"general_sft/{path.name}" for path in (TRIAL / "general_sft").iterdir()} == listed


@needs_trial_data
@pytest.mark.parametrize("name", TRIAL_FILES)
def test_nothing_vanishes_from_a_trial_file(tmp_path, name):
    pool = GeneralPool.read(TRIAL / name, tmp_path)
    report = pool.report
    assert (report["read"], report["kept"], report["notes"], refused_counts(pool)) == TRIAL_FILES[name]
    assert_nothing_vanished(pool)
    for kept in pool:
        roles = [m["role"] for m in kept.messages if m["role"] != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert all(m["content"] and m["content"] == m["content"].strip() for m in kept.messages)


@needs_trial_data
def test_mix_h26_coser_rows_that_differ_in_wording_alone_are_one_conversation(tmp_path):
    pool = GeneralPool.read(TRIAL / "coser/sft_sharegpt_othello_lear.json.gz", tmp_path)
    assert len(pool) == 409 and len(set(pool.conversations.tolist())) == 193
    for adapter in ("world_model", "character_agent"):
        drawn = draw(409, 500, 50, seed=0, adapter=adapter, conversations=pool.conversations)
        held_out = {int(pool.conversations[i]) for i in indices(drawn.validation)}
        assert len(drawn.validation) == 41 and drawn.shortfall == 9
        assert not held_out & {int(pool.conversations[i]) for i in indices(drawn.train)}


@needs_trial_data
def test_the_same_chat_in_two_dialects_gives_the_same_pool(tmp_path):
    names = ("swift_chatml", "swift_conversations")
    pools = [GeneralPool.read(TRIAL / f"general_sft/{name}.jsonl", tmp_path) for name in names]
    assert pools[0].report["digest"] == pools[1].report["digest"]


@needs_trial_data
def test_a_web_page_saved_as_data_is_refused(tmp_path):
    page = (TRIAL / "novels/BAD_scarlet_letter_download_error.txt").read_bytes()
    (tmp_path / "general.jsonl").write_bytes(page)
    with pytest.raises(DataError, match="web page"):
        GeneralPool.read(tmp_path / "general.jsonl", tmp_path / "work")
