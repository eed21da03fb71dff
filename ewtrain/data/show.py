"""One row as the model reads it: token by token, in a terminal or as a page, with what carries loss marked."""

from __future__ import annotations

import difflib
import heapq
import html
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ewtrain.chat import ADAPTERS, GENERAL, Adapter, Example, supervised_turns
from ewtrain.errors import DataError
from ewtrain.files import dataset_manifest
from ewtrain.story import TASK_NAMES

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from ewtrain.data.tokenize import ChatTokenizer

# Control characters and the marks that turn writing around: book text must not steer a terminal or a page.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_MOST_TOKENS_OF_A_CHARACTER = 8


# --- finding a row ---------------------------------------------------------------------------------------


def find_row(dataset: Path, row_id: str | None, adapter: Adapter | None = None) -> Example:
    """Return the row with an id, or without one the first row; DataError names the nearest ids.

    `adapter` decides between two rows of one id: both adapters may draw the same general row.
    """
    near: list[tuple[int, str]] = []
    for path in _row_files(dataset, adapter):
        for i, found in enumerate(_column(path, "id")):
            if row_id in (found, None):
                return _row_at(path, i)
            assert row_id is not None
            entry = (_shared_edges(found, row_id), found)
            if entry not in near:
                (heapq.heappush if len(near) < 50 else heapq.heappushpop)(near, entry)
    if row_id is None:
        raise DataError(f"{dataset}: holds no row{f' of {adapter}' if adapter else ''}. Build it again.")
    nearest = difflib.get_close_matches(row_id, [found for _, found in near], n=3, cutoff=0)
    listed = "".join(f"\n  {found}" for found in nearest)
    raise DataError(f"{dataset}: no row has the id {row_id!r}. Nearest are:{listed}")


def first_rows(dataset: Path) -> list[Example]:
    """Return the first row of each task of each adapter, in the order of the tasks, general rows last."""
    first: dict[tuple[str, str], tuple[Path, int]] = {}
    for adapter in ADAPTERS:
        for path in _row_files(dataset, adapter):
            for i, task in enumerate(_column(path, "task")):
                first.setdefault((adapter, task), (path, i))
    order: list[str] = [*ADAPTERS, *TASK_NAMES, GENERAL]
    keys = sorted(first, key=lambda key: (order.index(key[0]), order.index(key[1])))
    return [_row_at(*first[key]) for key in keys]


def _row_files(dataset: Path, adapter: Adapter | None) -> list[Path]:
    dataset_manifest(dataset)
    files = [
        dataset / a / f"{name}.parquet"
        for name in ("train", "validation", "validation_updates")
        for a in ADAPTERS
        if adapter in (a, None)
    ]
    return [path for path in files if path.is_file()]


def _column(path: Path, name: str) -> Iterator[Any]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=4096, columns=[name]):
            yield from batch.column(0).to_pylist()


def _row_at(path: Path, index: int) -> Example:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            if index < size:
                return Example.model_validate(file.read_row_group(group).slice(index, 1).to_pylist()[0])
            index -= size
    raise IndexError(index)


def _shared_edges(a: str, b: str) -> int:
    """Return how many characters two ids share from the left and from the right."""
    return sum(
        sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(x, y, strict=False)))
        for x, y in ((a, b), (a[::-1], b[::-1]))
    )


# --- a row in pieces -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """A token, or the several of one character. `control`: written by the chat template as one special token."""

    position: int
    ids: tuple[int, ...]
    text: str
    control: bool
    supervised: bool


def row_pieces(row: Example, tokenizer: ChatTokenizer) -> list[list[Piece]]:
    """Return a row's tokens in reading order, one list for each turn; RowError if it cannot be tokenised."""
    encoded = tokenizer.encode(row.messages, row.train_on)
    ids = encoded.input_ids
    supervised = [label == token for label, token in zip(encoded.labels, ids, strict=True)]
    added, ends = tokenizer.hf.added_tokens_decoder, set(tokenizer.end_of_turn_ids)
    turns: list[list[Piece]] = [[]]
    turn_over = False
    at = 0
    while at < len(ids):
        control = ids[at] in added
        if control and turn_over:
            turns.append([])
            turn_over = False
        size = 1 if control else _character_size(ids, supervised, at, tokenizer)
        part = tuple(ids[at : at + size])
        turns[-1].append(Piece(at, part, tokenizer.decode(part), control, supervised[at]))
        turn_over = turn_over or ids[at] in ends
        at += size
    return turns


def _character_size(ids: list[int], supervised: list[bool], at: int, tokenizer: ChatTokenizer) -> int:
    """Return how many tokens from `at` on make whole characters: bytes of one character may be apart."""
    for size in range(1, _MOST_TOKENS_OF_A_CHARACTER + 1):
        if at + size > len(ids) or supervised[at + size - 1] != supervised[at]:
            break
        if "\ufffd" not in tokenizer.decode(ids[at : at + size]):
            return size
    return 1


def _visible(text: str) -> str:
    """Return a text that cannot steer where it is shown: control characters are named instead."""
    return _UNSAFE.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


def _facts(
    row: Example, turns: list[list[Piece]] | None, tokenizer: ChatTokenizer | None
) -> list[tuple[str, str]]:
    place = [row.book_id, f"scene {row.scene}" if row.scene is not None else None]
    place += [f"segment {row.segment}" if row.segment is not None else None]
    place += [json.dumps(row.actors, ensure_ascii=False) if row.actors is not None else None]
    answers = sum(message["role"] == "assistant" for message in row.messages)
    trained = len(supervised_turns(row.messages, row.train_on))
    facts = [("id", row.id), ("task", row.task), ("adapter", row.adapter), ("source", row.source)]
    if any(place):
        facts.append(("place", ", ".join(filter(None, place))))
    facts.append(("messages", f"{len(row.messages):,}, {trained:,} of {answers:,} assistant turns trained"))
    if turns is not None and tokenizer is not None:
        pieces = [piece for turn in turns for piece in turn]
        tokens = sum(len(piece.ids) for piece in pieces)
        supervised = sum(len(piece.ids) for piece in pieces if piece.supervised)
        facts.append(("tokens", f"{tokens:,}"))
        facts.append(("supervised tokens", f"{supervised:,} ({supervised / tokens:.1%})"))
        facts.append(("tokenizer", f"{tokenizer.name}, chat template {tokenizer.template_hash[:12]}"))
    return [(name, _visible(value)) for name, value in facts]


# --- in a terminal ---------------------------------------------------------------------------------------


def show_row(row: Example, tokenizer: ChatTokenizer | None = None) -> RenderableType:
    """Return a row for a rich console: its tokens, or without a tokenizer its messages."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    turns = row_pieces(row, tokenizer) if tokenizer is not None else None
    header = Table.grid(padding=(0, 2))
    for name, value in _facts(row, turns, tokenizer):
        header.add_row(Text(name, "dim"), Text(value, overflow="fold"))
    legend = Text("Trained: ")
    legend.append("green and underlined", "bold green underline")
    if turns is None:
        blocks: Iterable[Text] = _message_texts(row)
    else:
        legend.append("; control tokens: ").append("in reverse", "reverse")
        legend.append("; every other token is a shade different.")
        blocks = [_token_text(turn) for turn in turns]
    parts: list[RenderableType] = [header, legend]
    for block in blocks:
        block.rstrip()
        parts += [Text(""), block]
    return Group(*parts)


def _message_texts(row: Example) -> Iterator[Text]:
    from rich.text import Text

    trained = set(supervised_turns(row.messages, row.train_on))
    for i, message in enumerate(row.messages):
        text = Text(overflow="fold")
        text.append(message["role"], "bold reverse")
        if message["role"] == "assistant":
            text.append(" trained" if i in trained else " not trained", "bold")
        text.append("\n")
        text.append(_visible(message["content"]), "bold green underline" if i in trained else "")
        yield text


def _token_text(turn: list[Piece]) -> Text:
    from rich.text import Text

    text = Text(overflow="fold")
    for i, piece in enumerate(turn):
        odd = i % 2
        if piece.control:
            style = "reverse bold green underline" if piece.supervised else "reverse"
        elif piece.supervised:
            style = "bold green underline" if odd else "bold bright_green underline"
        else:
            style = "dim" if odd else ""
        text.append(_visible(piece.text), style)
    return text


# --- as a page -------------------------------------------------------------------------------------------


def row_html(row: Example, tokenizer: ChatTokenizer | None = None) -> str:
    """Return a row as a page that needs nothing else: tokens, or without a tokenizer messages."""
    turns = row_pieces(row, tokenizer) if tokenizer is not None else None
    facts = "".join(
        f"<dt>{_escape(name)}</dt><dd>{_escape(value)}</dd>" for name, value in _facts(row, turns, tokenizer)
    )
    legend = "<mark>Coloured and underlined</mark> is what carries loss. "
    if turns is None:
        legend += "These are the messages; with <code>--model</code> the page shows tokens."
        body = "".join(_message_html(row))
    else:
        legend += (
            '<span class="c">A small box</span> is a control token, <span class="n">↵</span> a line break. Point at '
            "a turn to see its tokens' edges, at a token for its number and id."
        )
        body = "".join(f'<section class="turn">{_turn_html(turn)}</section>\n' for turn in turns)
    return _PAGE.format(title=_escape(_visible(row.id)), facts=facts, legend=legend, body=body, style=_STYLE)


def _escape(text: str) -> str:
    return html.escape(text, quote=True)


def _message_html(row: Example) -> Iterator[str]:
    trained = set(supervised_turns(row.messages, row.train_on))
    for i, message in enumerate(row.messages):
        note = "" if message["role"] != "assistant" else " · trained" if i in trained else " · not trained"
        content = _escape(_visible(message["content"]))
        if i in trained:
            content = f"<mark>{content}</mark>"
        role = _escape(message["role"])
        yield f'<section class="turn"><h2>{role}{note}</h2>{content}</section>\n'


def _turn_html(turn: list[Piece]) -> str:
    """Return a turn's tokens, each a span; a run of trained ones is one <mark>."""
    runs = []
    for supervised, pieces in groupby(turn, key=lambda piece: piece.supervised):
        spans = "".join(map(_piece_html, pieces))
        runs.append(f"<mark>{spans}</mark>" if supervised else spans)
    return "".join(runs)


def _piece_html(piece: Piece) -> str:
    last = piece.position + len(piece.ids) - 1
    number = f"token {piece.position}" if len(piece.ids) == 1 else f"tokens {piece.position} to {last}"
    ids = ", ".join(map(str, piece.ids))
    title = _escape(f"{number}, id {ids}{', trained' if piece.supervised else ''}")
    text = _escape(_visible(piece.text)).replace("\n", '<span class="n" aria-hidden="true">↵</span>\n')
    return f'<span class="{"c" if piece.control else "t"}" title="{title}">{text}</span>'


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<dl>{facts}</dl>
<p class="legend">{legend}</p>
{body}</main>
</body>
</html>
"""

_STYLE = """
:root { --page: #fbfaf8; --card: #ffffff; --ink: #1d1d1f; --quiet: #5c5f66; --line: #dcdad5;
  --edge: #b4b1aa; --mark: #0b5a24; --mark-back: #def3e3; --box: #3c3f8f; --box-back: #ececfa; }
@media (prefers-color-scheme: dark) {
  :root { --page: #16171a; --card: #1e2024; --ink: #e6e4df; --quiet: #a3a6ad; --line: #34373d;
    --edge: #565a63; --mark: #97e8ac; --mark-back: #17361f; --box: #b9bcff; --box-back: #2a2b4a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.15rem; margin: 0 0 1rem; overflow-wrap: anywhere; }
h2 { font: 600 .75rem/1 system-ui, sans-serif; letter-spacing: .06em; text-transform: uppercase;
  color: var(--quiet); margin: 0 0 .6rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; margin: 0 0 1rem; font-size: .9rem; }
dt { color: var(--quiet); }
dd { margin: 0; overflow-wrap: anywhere; }
.legend { color: var(--quiet); font-size: .9rem; margin: 0 0 1.2rem; }
.turn { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem;
  margin: 0 0 .7rem; font: .86rem/1.75 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; }
mark { color: var(--mark); background: var(--mark-back); text-decoration: underline; text-decoration-thickness: 2px;
  text-underline-offset: 3px; -webkit-box-decoration-break: clone; box-decoration-break: clone; }
.c { display: inline-block; border: 1px solid currentColor; border-radius: 4px; padding: 0 .3em; margin: 0 .1em;
  font-size: .78em; line-height: 1.4; color: var(--box); background: var(--box-back); }
mark .c { color: var(--mark); background: var(--mark-back); border-width: 2px; text-decoration: underline; }
.n { color: var(--quiet); opacity: .75; font-size: .85em; }
.turn:hover .t { box-shadow: inset -1px 0 0 var(--edge); }
.t:hover, .c:hover { outline: 2px solid var(--box); border-radius: 2px; }
"""
