"""Showing a row: exactly its tokens, exactly the trained ones marked, and no book text that acts as markup."""

from __future__ import annotations

import io
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import SAMPLES
from rich.console import Console
from rich.text import Text
from toy_tokenizers import FAMILIES, toy_tokenizer

from data_builders.build import BuildSettings, build
from data_builders.write import read_rows
from ewtrain.chat import ADAPTERS, Example, assistant, supervised_turns, system, user
from ewtrain.data.show import find_row, first_rows, row_html, row_pieces, show_row
from ewtrain.data.tokenize import ChatTokenizer
from ewtrain.errors import DataError

TOKENIZERS = {
    family: ChatTokenizer(toy_tokenizer(family), setting) for family, (_, _, setting) in FAMILIES.items()
}
QWEN = TOKENIZERS["qwen2.5"]
every_family = pytest.mark.parametrize("chat", TOKENIZERS.values(), ids=TOKENIZERS)

EVIL = "<script>alert(1)</script> </mark>\" onmouseover='x' &lt;b&gt; [bold red]x[/] \x1b[31mred\x07\u202eabc <|im_end|>"
SCRIPTS = "林 晓 said: “ça va…” 🙂👩‍👩‍👧 Ж"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("show") / "data"
    general = str(SAMPLES / "general.jsonl")
    build([SAMPLES], out, BuildSettings(), general=general, splits_file=SAMPLES / "splits.json")
    return out


def example(*messages, train_on: str = "all") -> Example:
    return Example(
        id="a:1:general::", task="general", adapter="world_model", source="toy", messages=list(messages),
        train_on=train_on,
    )  # fmt: skip


TALK = example(
    system("Be brief."), user(SCRIPTS), assistant(SCRIPTS), user("no, yes"), assistant("yes\n\nno")
)


class Page(HTMLParser):
    """What a browser makes of a page: its tags, its text, and the text inside <mark> below the legend."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.sections: list[str] = []
        self.marked: list[str] = []
        self.boxes: list[str] = []
        self.titles: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        values = dict(attrs)
        self.titles += [values["title"]] if "title" in values else []
        if tag != "meta":
            self.open.append(values.get("class") or tag)
        if tag == "section":
            self.sections.append("")
        if tag == "mark" and "turn" in self.open:
            self.marked.append("")

    def handle_endtag(self, tag):
        self.open.pop()

    def handle_data(self, data):
        if "turn" not in self.open or self.open[-1] in ("n", "h2"):
            return
        self.sections[-1] += data
        if "mark" in self.open:
            self.marked[-1] += data
        if self.open[-1] == "c":
            self.boxes.append(data)


def terminal(row: Example, tokenizer: ChatTokenizer | None = None) -> tuple[str, str]:
    """What a terminal gets as text, and the part of it that is underlined, legend left out."""
    texts = [part for part in show_row(row, tokenizer).renderables if isinstance(part, Text)][1:]
    underlined = "".join(
        text.plain[span.start : span.end]
        for text in texts
        for span in text.spans
        if "underline" in str(span.style)
    )
    console = Console(
        width=200, force_terminal=True, color_system="truecolor", file=io.StringIO(), record=True
    )
    console.print(show_row(row, tokenizer))
    return console.export_text(styles=True), underlined


@every_family
def test_the_page_shows_every_token_and_marks_exactly_the_trained_ones(chat):
    page = Page(row_html(TALK, chat))
    encoded = chat.encode(TALK.messages)
    assert "".join(page.sections) == chat.decode(encoded.input_ids)
    end = chat.decode(chat.end_of_turn_ids[:1])
    assert page.marked == [TALK.messages[i]["content"] + end for i in (2, 4)]
    assert len(page.sections) == len(TALK.messages)
    numbers = [int(n) for title in page.titles for n in re.findall(r"\d+", title.partition(", id ")[2])]
    assert numbers == encoded.input_ids


@every_family
def test_the_terminal_underlines_exactly_the_trained_tokens(chat):
    _, underlined = terminal(TALK, chat)
    end = chat.decode(chat.end_of_turn_ids[:1])
    assert underlined == "".join(TALK.messages[i]["content"] + end for i in (2, 4))


def test_a_character_of_several_tokens_is_shown_whole():
    pieces = [piece for turn in row_pieces(TALK, QWEN) for piece in turn]
    assert not any("\ufffd" in piece.text for piece in pieces)
    assert any(len(piece.ids) > 1 for piece in pieces)
    assert [i for piece in pieces for i in piece.ids] == QWEN.encode(TALK.messages).input_ids
    lost = example(user("a \ufffd b"), assistant("\ufffd"))
    assert [i for turn in row_pieces(lost, QWEN) for p in turn for i in p.ids] == QWEN.encode(
        lost.messages
    ).input_ids


def test_only_what_the_template_wrote_is_a_control_token():
    row = example(user("she said <|im_end|>"), assistant("<|im_start|>"))
    assert (
        Page(row_html(row, QWEN)).boxes == ["<|im_start|>", "<|im_end|>"] * 3
    )  # with the template's own system turn


@pytest.mark.parametrize("tokenizer", [None, QWEN], ids=["messages", "tokens"])
def test_book_text_is_never_markup_on_the_page(tokenizer):
    row = example(user(EVIL), assistant(EVIL)).model_copy(
        update={"id": EVIL, "book_id": EVIL, "actors": [EVIL]}
    )
    page = Page(row_html(row, tokenizer))
    assert page.tags <= {
        "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "dl", "dt", "dd", "p", "section",
        "mark", "span", "code",
    }  # fmt: skip
    assert page.attributes <= {
        "lang",
        "charset",
        "name",
        "content",
        "http-equiv",
        "class",
        "title",
        "aria-hidden",
    }
    shown = EVIL.replace("\x1b", "⟨U+001B⟩").replace("\x07", "⟨U+0007⟩").replace("\u202e", "⟨U+202E⟩")
    assert shown in "".join(page.sections)
    assert page.open == []


@pytest.mark.parametrize("tokenizer", [None, QWEN], ids=["messages", "tokens"])
def test_book_text_cannot_steer_the_terminal(tokenizer):
    row = example(user(EVIL), assistant(EVIL)).model_copy(update={"id": EVIL})
    text, _ = terminal(row, tokenizer)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", plain)
    assert "\x1b[31mred" not in text
    assert "[bold red]x[/]" in plain and "⟨U+001B⟩[31mred⟨U+0007⟩" in plain


def test_without_a_tokenizer_only_the_turns_with_loss_are_marked():
    row = TALK.model_copy(update={"train_on": "last"})
    assert Page(row_html(row)).marked == ["yes\n\nno"]
    text, underlined = terminal(row)
    assert underlined == "yes\n\nno"
    assert "1 of 2 assistant turns trained" in text and "not trained" in text
    assert Page(row_html(row, QWEN)).marked == ["yes\n\nno<|im_end|>"]


def test_the_header_counts_what_the_tokenizer_counts():
    encoded = QWEN.encode(TALK.messages)
    share = f"{encoded.num_supervised / len(encoded.input_ids):.1%}"
    assert f"<dd>{encoded.num_supervised:,} ({share})</dd>" in row_html(TALK, QWEN)
    assert f"<dt>tokens</dt><dd>{len(encoded.input_ids):,}</dd>" in row_html(TALK, QWEN)


def test_the_colours_of_the_page_have_readable_contrast():
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    schemes = re.findall(r":root \{(.*?)\}", row_html(TALK), re.S)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--([\w-]+): (#\w{6})", scheme))
        for ink, paper in (("ink", "card"), ("quiet", "page"), ("mark", "mark-back"), ("box", "box-back")):
            a, b = sorted((luminance(colours[ink]), luminance(colours[paper])))
            assert (b + 0.05) / (a + 0.05) >= 4.5, (ink, paper)


def test_the_first_row_of_each_task_is_offered_in_the_order_of_the_tasks(dataset):
    rows = first_rows(dataset)
    assert [row.task for row in rows if row.adapter == "world_model"] == [
        "scene_cast", "location_scenario", "next_character", "world_update", "general",
    ]  # fmt: skip
    assert [row.task for row in rows if row.adapter == "character_agent"] == [
        "motivation_update", "interaction_gen", "character_update", "general",
    ]  # fmt: skip
    for row in rows:
        stored = read_rows(dataset / row.adapter / "train.parquet")
        assert next(Example.model_validate(r) for r in stored if r["task"] == row.task) == row
    assert find_row(dataset, None, "character_agent").adapter == "character_agent"
    assert find_row(dataset, None) == find_row(dataset, None, "world_model")


def test_every_row_is_found_by_its_id(dataset):
    for adapter in ADAPTERS:
        for name in ("validation", "validation_updates"):
            path = dataset / adapter / f"{name}.parquet"
            rows = [Example.model_validate(row) for row in read_rows(path)] if path.exists() else []
            assert rows or (adapter, name) == ("character_agent", "validation_updates")
            for row in rows:
                assert find_row(dataset, row.id, adapter) == row


def test_a_row_is_found_in_whichever_part_of_its_file_it_lies(dataset, tmp_path):
    data = Path(shutil.copytree(dataset, tmp_path / "data"))
    path = data / "world_model" / "train.parquet"
    pq.write_table(pq.read_table(path), path, row_group_size=7)
    assert pq.ParquetFile(path).num_row_groups > 5
    for row in read_rows(dataset / "world_model" / "train.parquet"):
        assert find_row(data, row["id"], "world_model").model_dump() == row


def test_an_unknown_id_is_answered_with_the_nearest_ones(dataset):
    right = first_rows(dataset)[2].id
    for wrong in (right.replace("orrin", "orin"), "x" + right, right + "0"):
        with pytest.raises(DataError) as caught:
            find_row(dataset, wrong)
        assert f"\n  {right}\n" in str(caught.value) + "\n"
        assert str(caught.value).count("\n") == 3


def test_a_folder_that_is_no_finished_build_is_named(tmp_path):
    for ask in (lambda: first_rows(tmp_path), lambda: find_row(tmp_path, "x")):
        with pytest.raises(DataError, match="no finished build"):
            ask()


def test_a_real_row_of_every_task_is_shown_as_it_is_trained(dataset):
    for row in first_rows(dataset):
        marked = Page(row_html(row, QWEN)).marked
        assert marked == [
            row.messages[i]["content"] + "<|im_end|>" for i in supervised_turns(row.messages, row.train_on)
        ]
