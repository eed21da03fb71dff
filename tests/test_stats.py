"""Statistics: counted from the rows, checked against the manifest, and never dressed up as more than they are."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from conftest import SAMPLES
from toy_tokenizers import toy_tokenizer

from data_builders.build import BuildSettings, build
from data_builders.export import export
from data_builders.stats import Stats, write_stats
from data_builders.stats_books import dimensions
from data_builders.write import RowWriter, read_rows
from ewtrain.chat import ADAPTERS, Example, supervised_turns
from ewtrain.data.tokenize import ChatTokenizer
from ewtrain.errors import DataError
from ewtrain.files import read_json

QWEN = ChatTokenizer(toy_tokenizer("qwen2.5"))
SPLITS = ("train", "validation")
PNG = b"\x89PNG\r\n\x1a\n"


def make(timelines: Path, out: Path) -> Path:
    general, splits = str(SAMPLES / "general.jsonl"), SAMPLES / "splits.json"
    build([timelines], out, BuildSettings(), general=general, splits_file=splits)
    return out


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    return make(SAMPLES, tmp_path_factory.mktemp("stats") / "data")


@pytest.fixture
def copy(dataset, tmp_path) -> Path:
    return Path(shutil.copytree(dataset, tmp_path / "data"))


@pytest.fixture(scope="module")
def another_book(tmp_path_factory) -> Path:
    """A timeline that the dataset was not built from."""
    book = read_json(SAMPLES / "the-lamp-at-orrin-head.timeline.json")
    book["book"]["book_id"] = "another-book"
    path = tmp_path_factory.mktemp("books") / "another.timeline.json"
    path.write_text(json.dumps(book))
    return path


@pytest.fixture(scope="module")
def full(dataset, another_book, tmp_path_factory) -> tuple[Stats, Path]:
    """All that there is: exact tokens, and the timelines; a book that is not of the dataset counts for nothing."""
    out = tmp_path_factory.mktemp("full") / "stats"
    return write_stats(dataset, out, tokenizer=QWEN, exact=True, timelines=[another_book, SAMPLES]), out


def rows_of(dataset: Path, adapter: str, split: str) -> list[Example]:
    return [Example.model_validate(row) for row in read_rows(dataset / adapter / f"{split}.parquet")]


def rewrite(path: Path, rows: list[Example]) -> None:
    writer = RowWriter(path)
    for row in rows:
        writer.add(row)
    writer.close()


def table(markdown: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, its head included."""
    part = markdown[markdown.index(heading) :]
    lines = re.search(r"(\|.*\|\n)+", part)[0].splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in lines
        if not line.startswith("| ---")
    ]


def test_the_mixture_counts_each_row_turn_character_and_token_once(dataset, full):
    stats, _ = full
    found = {(line.adapter, line.split, line.source, line.task): line for line in stats.mixture_lines}
    expected: dict[tuple, Counter] = {}
    for adapter in ADAPTERS:
        for split in SPLITS:
            for row in rows_of(dataset, adapter, split):
                cell = expected.setdefault((adapter, split, row.source, row.task), Counter())
                trained = supervised_turns(row.messages, row.train_on)
                encoded = QWEN.encode(row.messages, row.train_on)
                cell.update(
                    rows=1,
                    assistant_turns=sum(m["role"] == "assistant" for m in row.messages),
                    characters=sum(len(m["content"]) for m in row.messages),
                    supervised_characters=sum(len(row.messages[i]["content"]) for i in trained),
                    tokens=len(encoded.input_ids),
                    supervised_tokens=sum(label != -100 for label in encoded.labels),
                )
    assert {
        key: {name: getattr(found[key], name) for name in cell} for key, cell in expected.items()
    } == expected
    assert len(found) == len(stats.mixture_lines) == len(expected)


def test_the_tables_stand_beside_the_papers(dataset, full):
    stats, out = full
    markdown = (out / "stats.md").read_text()
    overview = {line[0]: line[1:] for line in table(markdown, "## Overview")}
    assert overview["interactions"] == ["215", "132,800"]  # 107 and 108, as the samples' README counts them
    assert overview["unique characters"] == ["13", "3,311"]
    assert overview["unique locations"] == ["10", "1,888"]
    assert overview["scenes"] == ["26", "9,763"]
    assert overview["snapshots, ood"] == ["8", "106"]
    tasks = {line[0]: line[1:] for line in table(markdown, "## Rows per task")}
    both = [row for adapter in ADAPTERS for split in SPLITS for row in rows_of(dataset, adapter, split)]
    nexts = [row for row in both if row.task == "next_character"]
    turns = sum(m["role"] == "assistant" for row in nexts for m in row.messages)
    assert tasks["`next_character`"][2:] == [str(len(nexts)), str(turns), "14,315", "116,789"]
    assert tasks["**Total**"][2] == str(sum(row.task != "general" for row in both))
    assert tasks["**Total**"][4:] == ["138,596", "309,347"]
    assert tasks["**world_model**"][4:] == ["48,088", "150,562"]
    assert tasks["**character_agent**"][4:] == ["90,508", "158,785"]
    assert json.loads((out / "stats.json").read_text()) == stats.model_dump(mode="json")


def test_lengths_are_those_of_the_rows(dataset, full):
    stats, _ = full
    line = next(x for x in stats.lengths if x.task == "scene_cast")
    lengths = sorted(
        len(QWEN.encode(row.messages).input_ids)
        for split in SPLITS
        for row in rows_of(dataset, "world_model", split)
        if row.task == "scene_cast"
    )
    assert (line.n, line.max) == (len(lengths), lengths[-1])
    assert lengths[len(lengths) // 2 - 1] <= line.median <= lengths[len(lengths) // 2] <= line.p95 <= line.max


def test_every_picture_is_drawn_where_there_is_data_for_it(full):
    stats, out = full
    assert sorted(stats.pictures.values()) == ["dimensions.png", "extracted.png", "genres.png", "lengths.png"]
    assert stats.left_out == {}
    for file in stats.pictures.values():
        picture = (out / file).read_bytes()
        assert picture.startswith(PNG) and len(picture) > 10_000
        assert f"({file})" in (out / "stats.md").read_text()


def test_a_sample_is_marked_in_every_heading_and_takes_a_row_of_every_kind(dataset, tmp_path, full):
    stats = write_stats(dataset, tmp_path / "a", tokenizer=QWEN, sample_share=0.001)
    assert len(stats.mixture_lines) == len(full[0].mixture_lines)
    assert all(line.measured_rows >= 1 for line in stats.mixture_lines)
    assert stats.tokens.measured_rows < sum(line.rows for line in stats.mixture_lines) / 4
    markdown = (tmp_path / "a" / "stats.md").read_text()
    headings = [line for line in markdown.splitlines() if line.startswith("## ")]
    heads = [head for title in headings[:4] for head in table(markdown, title)[0]]
    told = [text for text in (*headings, *heads) if "tokens" in text]
    assert len(told) >= 6 and all("tokens (0.1% sample)" in text for text in told)
    assert "**Tokens are estimated**" in markdown
    write_stats(dataset, tmp_path / "b", tokenizer=QWEN, sample_share=0.001)
    for file in ("stats.json", "stats.md", "lengths.png"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_an_estimate_comes_near_the_exact_count(dataset, tmp_path, full):
    stats = write_stats(dataset, tmp_path / "a", tokenizer=QWEN, sample_share=0.25)
    for estimate, exact in zip(stats.mixture_lines, full[0].mixture_lines, strict=True):
        if exact.task != "general":
            assert estimate.tokens == pytest.approx(exact.tokens, rel=0.05)
            assert estimate.supervised_tokens == pytest.approx(exact.supervised_tokens, rel=0.15)


def test_without_a_tokenizer_nothing_is_called_tokens_and_what_is_left_out_is_said(dataset, tmp_path):
    stats = write_stats(dataset, tmp_path / "a")
    assert stats.tokens is None and all(line.tokens is None for line in stats.mixture_lines)
    markdown = (tmp_path / "a" / "stats.md").read_text()
    assert not any("token" in line for line in markdown.splitlines() if line.startswith(("#", "|")))
    assert table(markdown, "## Overview")[3] == ["interactions", "needs --timelines", "132,800"]
    assert list(stats.pictures.values()) == ["lengths.png"]
    assert len(stats.left_out) == 3 and all("--timelines" in why for why in stats.left_out.values())
    assert all(f"Left out: {name}: {why}" in markdown for name, why in stats.left_out.items())


def test_rows_that_are_not_those_of_the_manifest_are_refused(copy):
    path = copy / "character_agent" / "train.parquet"
    rows = rows_of(copy, "character_agent", "train")
    rewrite(path, rows[1:])
    with pytest.raises(DataError, match="the folder was changed") as caught:
        write_stats(copy)
    assert "character_agent train motivation_update: rows are 31, the manifest counts 32" in str(caught.value)
    longer = [{**rows[0].messages[0], "content": rows[0].messages[0]["content"] + "!"}, *rows[0].messages[1:]]
    rewrite(path, [rows[0].model_copy(update={"messages": longer}), *rows[1:]])
    with pytest.raises(DataError, match="motivation_update: characters are"):
        write_stats(copy)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"train\.parquet: cannot be read"):
        write_stats(copy)
    path.unlink()
    with pytest.raises(DataError, match=r"train\.parquet: cannot be read"):
        write_stats(copy)
    assert not (copy / "stats").exists()


def test_snapshots_that_are_not_those_of_the_manifest_are_refused(copy):
    path = copy / "snapshots.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(
        DataError, match=r"holds \{'ood': 7\} snapshots, the manifest counts \{'id': 0, 'ood': 8\}"
    ):
        write_stats(copy)


def test_a_row_that_cannot_be_tokenised_is_counted_and_stands_in_no_token_figure(copy):
    path = copy / "world_model" / "train.parquet"
    rows = rows_of(copy, "world_model", "train")
    i = next(i for i, row in enumerate(rows) if row.task == "scene_cast")
    content = rows[i].messages[1]["content"]
    bad = [rows[i].messages[0], {"role": "user", "content": content[:-8] + "</think>"}, *rows[i].messages[2:]]
    rewrite(path, [*rows[:i], rows[i].model_copy(update={"messages": bad}), *rows[i + 1 :]])
    stats = write_stats(copy, tokenizer=QWEN, exact=True)
    assert stats.tokens.refused == {"think_text": {"count": 1, "examples": [rows[i].id]}}
    line = next(x for x in stats.mixture_lines if (x.split, x.task) == ("train", "scene_cast"))
    assert line.measured_rows == line.rows - 1
    good = [row for row in rows if row.task == "scene_cast" and row.id != rows[i].id]
    assert line.tokens == sum(len(QWEN.encode(row.messages).input_ids) for row in good)
    assert "1 row cannot be tokenised (think_text)" in (copy / "stats" / "stats.md").read_text()


def test_timelines_that_are_not_those_of_the_build_are_refused(dataset, tmp_path, another_book):
    with pytest.raises(DataError, match=r"the-lamp-at-orrin-head\.timeline\.json is missing or was changed"):
        write_stats(
            dataset,
            tmp_path / "a",
            timelines=[another_book, SAMPLES / "the-key-hung-backwards.timeline.json"],
        )


def test_what_a_source_does_not_record_is_absent_and_not_zero(tmp_path):
    books = tmp_path / "books"
    books.mkdir()
    for file in SAMPLES.glob("*.timeline.json"):
        book = read_json(file)
        book["provides"] = ["next_character", "interaction_gen"]
        book["book"].pop("genre")
        plain = json.dumps(book).replace("**", "")
        (books / file.name).write_text(plain)
    stats = write_stats(make(books, tmp_path / "data"), timelines=[books])
    assert set(stats.extracted) == {
        "scenes per book", "characters per book", "locations per book", "interactions per scene", "cast size per scene",
    }  # fmt: skip
    assert sorted(stats.pictures.values()) == ["extracted.png", "lengths.png"]
    assert set(stats.left_out.values()) == {
        "no book has a genre.",
        "no profile and no global state has `**Dimension**` headings.",
    }


def test_figure_6_counts_what_the_timelines_hold(full):
    stats, _ = full
    books = [read_json(file) for file in SAMPLES.glob("*.timeline.json")]
    turns = [turn for book in books for scene in book["scenes"] for turn in scene["interactions"]]
    updates = [u for book in books for scene in book["scenes"] for u in scene["character_updates"].values()]
    spread = {name: (s.n, round(s.mean * s.n)) for name, s in stats.extracted.items()}
    assert spread == {
        "scenes per book": (2, 26),
        "characters per book": (2, 13),
        "locations per book": (2, 10),
        "interactions per scene": (26, len(turns)),
        "cast size per scene": (26, sum(len(scene["cast"]) for book in books for scene in book["scenes"])),
        "profile updates per character": (13, sum(u.get("profile") is not None for u in updates)),
        "global updates per book": (2, sum("global_state" in turn for turn in turns)),
        "location updates per location": (10, sum("location_state" in turn for turn in turns)),
    }
    people: dict[tuple[str, str], str] = {}
    for book in books:
        aliases = {alias: c["name"] for c in book["characters"] for alias in [c["name"], *c["aliases"]]}
        told = [(c["name"], c["initial"]["profile"]) for c in book["characters"]]
        told += [
            (n, u.get("profile") or "") for s in book["scenes"] for n, u in s["character_updates"].items()
        ]
        for name, profile in told:
            key = book["book"]["book_id"], aliases[name]
            people[key] = people.get(key, "") + "\n" + profile
    for dimension in ("Fear", "Guilt", "Gift"):
        having = sum(f"\n**{dimension}**\n" in profile for profile in people.values())
        assert stats.dimensions["profile"][dimension] == having > 0
    assert stats.genres == {"Adventure": {"Sea": 1}, "Mystery": {"Snowbound Hotel": 1}}


@pytest.mark.parametrize(
    ("markdown", "names"),
    [
        ("**Age and Trade**\nFifteen.\n\n**Gift**\nEyes.", ["Age and Trade", "Gift"]),
        ("**Gift:** eyes\n- **Want**: a door\n## **Past**  \nlong", ["Gift", "Want", "Past"]),
        ("He is **Never** late.\n**Never** late either.", []),
        ("**林 晓**\n…", ["林 晓"]),
        ("****\nnothing", []),
        (None, []),
    ],
)  # fmt: skip
def test_a_dimension_is_a_bold_heading_and_no_bold_word(markdown, names):
    assert dimensions(markdown) == names


def test_a_dataset_with_its_statistics_inside_is_still_read_and_they_are_renewed(copy):
    write_stats(copy)
    (copy / "stats" / "left.txt").write_text("of an earlier run")
    write_stats(copy)
    assert sorted(p.name for p in (copy / "stats").iterdir()) == ["lengths.png", "stats.json", "stats.md"]
    assert export(copy, copy / "export")
