"""What is in a dataset: tables beside the paper's, and pictures (EW Tables 6 and 8, Figures 4 to 7).

Everything is counted from the rows and must equal what the manifest counts. Tokens need a tokenizer; where
they come from a sample, every heading says so. What was extracted from the books needs their timelines.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from data_builders.build import manifest_hash, read_manifest
from data_builders.mixture import SPLITS
from data_builders.timelines import file_hash, find_timelines
from data_builders.walk import rank
from data_builders.write import read_rows, whole_folder, write_json
from ewtrain.chat import ADAPTERS, GENERAL, Message, TrainOn, supervised_turns
from ewtrain.errors import ConfigError, DataError
from ewtrain.story import Timeline
from ewtrain.tasks import TASKS
from ewtrain.timeline_file import read_timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from wordcloud import WordCloud

    from ewtrain.data.tokenize import ChatTokenizer

Progress = Callable[[str, int, int], None]

# The paper's own figures (EW Tables 6 and 8, Figures 6 and 7, D.1).
PAPER = "EW, arXiv 2607.17250"
PAPER_OVERVIEW = {
    "books": "57",
    "scenes": "9,763",
    "interactions": "132,800",
    "unique characters": "3,311",
    "unique locations": "1,888",
    "task rows, train and validation": "138,596",
    "task rows, train": "",
    "task rows, validation": "10%, of rows",
    "general rows, train and validation": "1 : 1, Tulu 3",
    "snapshots, id": "116",
    "snapshots, ood": "106",
}
PAPER_TASKS = {
    "scene_cast": (7_983, 7_983),
    "location_scenario": (7_958, 7_958),
    "next_character": (14_315, 116_789),
    "world_update": (17_832, 17_832),
    "interaction_gen": (40_554, 108_831),
    "character_update": (24_977, 24_977),
    "motivation_update": (24_977, 24_977),
}
PAPER_MEDIAN_TOKENS = {
    "scene_cast": "11.2k",
    "location_scenario": "8.0k",
    "next_character": "4.9k to 6.0k",
    "world_update": "4.9k to 6.0k",
    "interaction_gen": "4.9k to 6.0k",
    "motivation_update": "4.9k to 6.0k",
    "character_update": "2.8k",
}
PAPER_MEDIANS = {"scenes per book": "160", "characters per book": "43", "locations per book": "25"}
PAPER_DIMENSIONS = {"profile": "581", "global_state": "136"}

_EXTRACTED = (
    "scenes per book",
    "characters per book",
    "locations per book",
    "interactions per scene",
    "cast size per scene",
    "profile updates per character",
    "global updates per book",
    "location updates per location",
)
_BATCH_CHARACTERS = 2**20

# --- what comes out --------------------------------------------------------------------------------------


class _Out(BaseModel):
    model_config = ConfigDict(frozen=True)


class TokenSource(_Out):
    """How tokens were counted. `exact`: over every row; otherwise estimated from `measured_rows`."""

    tokenizer: str
    fingerprint: str
    exact: bool
    sample_share: float | None
    measured_rows: int
    refused: dict[str, dict[str, Any]]


class MixtureLine(_Out):
    """The rows of one adapter, split, source and task. Tokens are None where nothing was measured."""

    adapter: str
    split: str
    source: str
    task: str
    rows: int
    assistant_turns: int
    characters: int
    supervised_characters: int
    measured_rows: int
    tokens: int | None
    supervised_tokens: int | None


class LengthLine(_Out):
    """How long an adapter's rows of a task are, both splits together, over `n` rows."""

    adapter: str
    task: str
    n: int
    median: int
    p95: int
    max: int


class Spread(_Out):
    n: int
    mean: float
    median: float
    max: int


class Stats(_Out):
    """What `stats.json` holds."""

    manifest_hash: str
    mixture: str
    tokens: TokenSource | None
    overview: dict[str, int | None]
    mixture_lines: list[MixtureLine]
    lengths: list[LengthLine]
    extracted: dict[str, Spread] | None
    dimensions: dict[str, dict[str, int]] | None
    genres: dict[str, dict[str, int]] | None
    pictures: dict[str, str]
    left_out: dict[str, str]

    @property
    def unit(self) -> str:
        return "characters" if self.tokens is None else "tokens"

    @property
    def tokens_heading(self) -> str:
        """What a heading over token figures says."""
        if self.tokens is None:
            return "characters"
        if self.tokens.sample_share is None:
            return "tokens"
        return f"tokens ({_percent(self.tokens.sample_share)} sample)"


def write_stats(
    dataset: Path,
    out: Path | None = None,
    *,
    tokenizer: ChatTokenizer | None = None,
    exact: bool = False,
    sample_share: float = 0.05,
    timelines: Sequence[Path] | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> Stats:
    """Write `stats.md`, `stats.json` and pictures to `<dataset>/stats` or `out`, and return what they say.

    DataError if the rows are not those that the manifest counts, or the timelines not those it was built
    from. An earlier result in that folder is replaced.
    """
    if not 0 < sample_share <= 1:
        raise ConfigError(f"sample_share is {sample_share}; it is a share of the rows, above 0 and up to 1.")
    _need_matplotlib()
    manifest = read_manifest(dataset)
    count = _count_rows(dataset, manifest, tokenizer, 1.0 if exact else sample_share, progress)
    snapshots = _count_snapshots(dataset, manifest)
    extracted = _Extracted.read(timelines, manifest, progress) if timelines is not None else None
    with whole_folder(out or dataset / "stats", marker="stats.json", overwrite=True) as folder:
        pictures, left_out = _draw(folder, count, extracted, tokenizer, exact, sample_share)
        stats = Stats(
            manifest_hash=manifest_hash(dataset),
            mixture=manifest["settings"]["mixture"],
            tokens=_token_source(count, tokenizer, exact, sample_share),
            overview=_overview(manifest, count, snapshots, extracted),
            mixture_lines=[
                cell.line(key, exact=exact) for key, cell in sorted(count.cells.items(), key=_in_order)
            ],
            lengths=list(count.length_lines()),
            extracted=extracted.spreads() if extracted is not None else None,
            dimensions=extracted.dimension_counts() if extracted is not None else None,
            genres=extracted.genre_counts() if extracted is not None else None,
            pictures=pictures,
            left_out=left_out,
        )
        write_json(folder / "stats.json", stats.model_dump(mode="json"))
        (folder / "stats.md").write_text(_markdown(stats), encoding="utf-8")
    return stats


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _need_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
        import wordcloud  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"{error.name} is not installed; the pictures need it: pip install 'ewtrain[stats]'."
        ) from None


# --- counting rows ---------------------------------------------------------------------------------------


class Key(NamedTuple):
    adapter: str
    split: str
    source: str
    task: str


@dataclass
class _Row:
    id: str
    messages: list[Message]
    train_on: TrainOn
    characters: int
    supervised_characters: int


@dataclass
class _Cell:
    """The rows of one adapter, split, source and task; one number a row stays in memory."""

    rows: int = 0
    assistant_turns: int = 0
    characters: int = 0
    supervised_characters: int = 0
    lengths: array[int] = field(
        default_factory=lambda: array("q")
    )  # characters of all, or tokens of measured rows
    measured_characters: int = 0
    measured_supervised_characters: int = 0
    measured_tokens: int = 0
    measured_supervised_tokens: int = 0
    num_chosen: int = 0
    stand_in: tuple[int, _Row] | None = None  # measured if the sample takes none of the cell

    def line(self, key: Key, *, exact: bool) -> MixtureLine:
        # Characters are known of every row, so a sample need only say how many tokens a character makes.
        scale = 1.0 if exact else self.characters / max(1, self.measured_characters)
        supervised_scale = (
            1.0 if exact else self.supervised_characters / max(1, self.measured_supervised_characters)
        )
        measured = self.measured_tokens > 0
        return MixtureLine(
            **key._asdict(),
            rows=self.rows,
            assistant_turns=self.assistant_turns,
            characters=self.characters,
            supervised_characters=self.supervised_characters,
            measured_rows=len(self.lengths) if measured else 0,
            tokens=round(self.measured_tokens * scale) if measured else None,
            supervised_tokens=round(self.measured_supervised_tokens * supervised_scale) if measured else None,
        )


@dataclass
class _Count:
    tokenizer: ChatTokenizer | None
    share: float
    cells: dict[Key, _Cell] = field(default_factory=dict)
    refused: dict[str, dict[str, Any]] = field(default_factory=dict)
    _waiting: list[tuple[_Cell, _Row]] = field(default_factory=list)
    _waiting_characters: int = 0

    def add(self, key: Key, row: dict[str, Any]) -> None:
        messages, trained = row["messages"], set(supervised_turns(row["messages"], row["train_on"]))
        sizes = [len(message["content"]) for message in messages]
        cell = self.cells.setdefault(key, _Cell())
        made = _Row(row["id"], messages, row["train_on"], sum(sizes), sum(sizes[i] for i in trained))
        cell.rows += 1
        cell.assistant_turns += sum(message["role"] == "assistant" for message in messages)
        cell.characters += made.characters
        cell.supervised_characters += made.supervised_characters
        if self.tokenizer is None:
            cell.lengths.append(made.characters)
            return
        number = rank(0, "stats", key.adapter, made.id)
        if self.share >= 1 or number < self.share * 2**64:
            self._measure(cell, made)
        elif not cell.num_chosen and (cell.stand_in is None or number < cell.stand_in[0]):
            cell.stand_in = number, made

    def finish(self) -> None:
        """Measure what is still waiting, and one row of every cell that the sample left out."""
        for cell in self.cells.values():
            if not cell.num_chosen and cell.stand_in is not None:
                self._measure(cell, cell.stand_in[1])
        self._tokenize()

    def _measure(self, cell: _Cell, row: _Row) -> None:
        cell.num_chosen, cell.stand_in = cell.num_chosen + 1, None
        self._waiting.append((cell, row))
        self._waiting_characters += row.characters
        if self._waiting_characters >= _BATCH_CHARACTERS:
            self._tokenize()

    def _tokenize(self) -> None:
        from ewtrain.data.tokenize import RowError

        if self.tokenizer is None:
            return
        waiting, self._waiting, self._waiting_characters = self._waiting, [], 0
        encoded_rows = self.tokenizer.encode_many([(row.messages, row.train_on) for _, row in waiting])
        for (cell, row), encoded in zip(waiting, encoded_rows, strict=True):
            if isinstance(encoded, RowError):
                refused = self.refused.setdefault(encoded.kind, {"count": 0, "examples": []})
                refused["count"] += 1
                refused["examples"] += [row.id] if len(refused["examples"]) < 3 else []
                continue
            cell.lengths.append(len(encoded.input_ids))
            cell.measured_characters += row.characters
            cell.measured_supervised_characters += row.supervised_characters
            cell.measured_tokens += len(encoded.input_ids)
            cell.measured_supervised_tokens += encoded.num_supervised

    def lengths(self) -> dict[tuple[str, str], np.ndarray]:
        """Return the lengths by adapter and task, both splits together."""
        found: dict[tuple[str, str], list[array[int]]] = {}
        for key, cell in sorted(self.cells.items(), key=_in_order):
            if cell.lengths:
                found.setdefault((key.adapter, key.task), []).append(cell.lengths)
        return {key: np.concatenate([np.asarray(part) for part in parts]) for key, parts in found.items()}

    def length_lines(self) -> Iterator[LengthLine]:
        for (adapter, task), lengths in self.lengths().items():
            median, p95 = np.percentile(lengths, [50, 95])
            yield LengthLine(
                adapter=adapter,
                task=task,
                n=len(lengths),
                median=round(median),
                p95=round(p95),
                max=int(lengths.max()),
            )

    def total(self, split: str | None = None, *, general: bool) -> int:
        return sum(
            cell.rows
            for key, cell in self.cells.items()
            if split in (key.split, None) and (key.task == GENERAL) == general
        )


_TASK_ORDER = {task: i for i, task in enumerate((*TASKS, GENERAL))}


def _in_order(entry: tuple[Key, _Cell]) -> tuple[Any, ...]:
    key = entry[0]
    return (
        ADAPTERS.index(key.adapter),
        SPLITS.index(key.split),
        _TASK_ORDER.get(key.task, len(_TASK_ORDER)),
        key.task,
        key.source,
    )


def _count_rows(
    dataset: Path,
    manifest: dict[str, Any],
    tokenizer: ChatTokenizer | None,
    share: float,
    progress: Progress,
) -> _Count:
    from pyarrow import ArrowInvalid

    count, done = _Count(tokenizer, share), 0
    total = sum(n["rows"] for _, n in _leaves(manifest["counts"]))
    for adapter in ADAPTERS:
        for split in SPLITS:
            path = dataset / adapter / f"{split}.parquet"
            try:
                for row in read_rows(path, ["id", "task", "source", "messages", "train_on"]):
                    count.add(Key(adapter, split, row["source"], row["task"]), row)
                    done += 1
                    if done % 1000 == 0 or done == total:
                        progress("counting rows", done, total)
            except (FileNotFoundError, ArrowInvalid) as error:
                raise DataError(f"{path}: cannot be read ({error}). Build the dataset again.") from None
    _compare(dataset, manifest, count)
    count.finish()
    return count


def _leaves(counts: dict[str, Any]) -> Iterator[tuple[tuple[str, str, str], dict[str, int]]]:
    for adapter, splits in counts.items():
        for split, tasks in splits.items():
            for task, numbers in tasks.items():
                yield (adapter, split, task), numbers


def _compare(dataset: Path, manifest: dict[str, Any], count: _Count) -> None:
    """Raise DataError unless the rows are those that the manifest counts."""
    found: dict[tuple[str, str, str], Counter[str]] = {}
    for key, cell in count.cells.items():
        found.setdefault((key.adapter, key.split, key.task), Counter()).update(
            rows=cell.rows, assistant_turns=cell.assistant_turns, characters=cell.characters
        )
    said = {key: Counter(numbers) for key, numbers in _leaves(manifest["counts"])}
    wrong = []
    for place in sorted(said.keys() | found.keys()):
        here, there = found.get(place, Counter()), said.get(place, Counter())
        wrong += [
            f"{' '.join(place)}: {name} are {here[name]:,}, the manifest counts {there[name]:,}"
            for name in ("rows", "assistant_turns", "characters")
            if here[name] != there[name]
        ]
    if wrong:
        more = f"\n  and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise DataError(
            f"{dataset}: the rows are not those of its manifest; the folder was changed. Build it again.\n  "
            + "\n  ".join(wrong[:5])
            + more
        )


def _count_snapshots(dataset: Path, manifest: dict[str, Any]) -> Counter[str]:
    path, kinds = dataset / "snapshots.jsonl", Counter[str]()
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                kinds[json.loads(line)["kind"]] += 1
    except (FileNotFoundError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}). Build the dataset again.") from None
    if kinds != Counter(manifest["snapshots"]):
        raise DataError(
            f"{path}: holds {dict(kinds)} snapshots, the manifest counts {manifest['snapshots']}. Build it again."
        )
    return kinds


def _token_source(
    count: _Count, tokenizer: ChatTokenizer | None, exact: bool, share: float
) -> TokenSource | None:
    if tokenizer is None:
        return None
    return TokenSource(
        tokenizer=tokenizer.name,
        fingerprint=tokenizer.fingerprint,
        exact=exact,
        sample_share=None if exact else share,
        measured_rows=sum(len(cell.lengths) for cell in count.cells.values()),
        refused=dict(sorted(count.refused.items())),
    )


def _overview(
    manifest: dict[str, Any], count: _Count, snapshots: Counter[str], extracted: _Extracted | None
) -> dict[str, int | None]:
    books = manifest["books"].values()
    return {
        "books": len(books),
        "scenes": sum(book["scenes"] for book in books),
        "interactions": sum(extracted.values["interactions per scene"]) if extracted else None,
        "unique characters": sum(extracted.values["characters per book"]) if extracted else None,
        "unique locations": sum(extracted.values["locations per book"]) if extracted else None,
        "task rows, train and validation": count.total(general=False),
        "task rows, train": count.total("train", general=False),
        "task rows, validation": count.total("validation", general=False),
        "general rows, train and validation": count.total(general=True),
        "snapshots, id": snapshots["id"],
        "snapshots, ood": snapshots["ood"],
    }


# --- what the books hold ---------------------------------------------------------------------------------

# `**Name**` alone on its line, or with a colon before the text; bold words inside a sentence are none.
_DIMENSION = re.compile(r"^\W{0,4}\*\*([^*\n]{1,80}?)(?::\*\*|\*\*:|\*\*[ \t]*$)", re.MULTILINE)


def dimensions(markdown: str | None) -> list[str]:
    """Return the `**Dimension**` headings of a profile or global state, in order."""
    names = (" ".join(name.split()).strip(" :") for name in _DIMENSION.findall(markdown or ""))
    return [name for name in names if name]


@dataclass
class _Extracted:
    """What the timelines hold, read one book at a time. A book counts only where its source keeps such things."""

    values: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in _EXTRACTED})
    # Dimension (case folded) -> the characters, or books, that ever have it; and its first spelling.
    holders: dict[str, Counter[str]] = field(
        default_factory=lambda: {"profile": Counter(), "global_state": Counter()}
    )
    spelling: dict[str, str] = field(default_factory=dict)
    num_holders: Counter[str] = field(default_factory=Counter)
    genres: Counter[tuple[str, str]] = field(default_factory=Counter)
    num_books: int = 0

    @classmethod
    def read(cls, paths: Sequence[Path], manifest: dict[str, Any], progress: Progress) -> _Extracted:
        """Return what the dataset's own books hold; other timelines among the paths are passed over."""
        wanted = {book["sha256"]: book_id for book_id, book in manifest["books"].items()}
        extracted, missing = cls(), dict(wanted)
        for path in find_timelines(paths):
            digest = file_hash(path)
            if missing.pop(digest, None) is not None:
                extracted.add(read_timeline(path))
                progress("reading books", len(wanted) - len(missing), len(wanted))
        if missing:
            files = ", ".join(manifest["books"][book_id]["file"] for book_id in sorted(missing.values()))
            raise DataError(
                f"The timelines named are not all that this dataset was built from: {files} is missing or was changed "
                "since. Name the files of the build, or build again."
            )
        return extracted

    def add(self, book: Timeline) -> None:
        self.num_books += 1
        coarse, *fine = book.book.genre or [""]
        self.genres[coarse, fine[0] if fine else ""] += 1
        values, provides = self.values, set(book.provides)
        values["scenes per book"].append(len(book.scenes))
        values["characters per book"].append(len(book.characters))
        values["locations per book"].append(len(book.locations))
        values["interactions per scene"] += [len(scene.interactions) for scene in book.scenes]
        values["cast size per scene"] += [len(scene.cast) for scene in book.scenes]
        if "character_update" in provides:
            updates: Counter[str] = Counter(
                name
                for scene in book.scenes
                for name, update in scene.character_updates.items()
                if update.profile is not None
            )
            values["profile updates per character"] += [updates[c.name] for c in book.characters]
        if "world_update" in provides:
            values["global updates per book"].append(
                sum(turn.global_state is not None for scene in book.scenes for turn in scene.interactions)
            )
            changes = Counter(
                scene.location
                for scene in book.scenes
                for turn in scene.interactions
                if turn.location_state is not None
            )
            values["location updates per location"] += [changes[place.name] for place in book.locations]
        self._add_dimensions(book)

    def _add_dimensions(self, book: Timeline) -> None:
        profiles: dict[str, list[str | None]] = {c.name: [c.initial.profile] for c in book.characters}
        states: list[str | None] = [book.initial_global_state]
        for scene in book.scenes:
            for name, update in scene.character_updates.items():
                profiles[name].append(update.profile)
            states += [turn.global_state for turn in scene.interactions]
        for texts in profiles.values():
            self._hold("profile", texts)
        self._hold("global_state", states)

    def _hold(self, kind: str, texts: Iterable[str | None]) -> None:
        names = {name.casefold(): name for text in texts for name in dimensions(text)}
        for folded, name in names.items():
            self.spelling.setdefault(folded, name)
            self.holders[kind][folded] += 1
        self.num_holders[kind] += bool(names)

    def dimension_counts(self) -> dict[str, dict[str, int]]:
        return {
            kind: {self.spelling[name]: n for name, n in sorted(held.items(), key=lambda e: (-e[1], e[0]))}
            for kind, held in self.holders.items()
        }

    def genre_counts(self) -> dict[str, dict[str, int]]:
        """Return books by coarse and fine genre; "" is where none is given."""
        tree: dict[str, dict[str, int]] = {}
        coarse_size = Counter[str]()
        for (coarse, _), n in self.genres.items():
            coarse_size[coarse] += n
        order = sorted(self.genres.items(), key=lambda e: (-coarse_size[e[0][0]], e[0][0], -e[1], e[0][1]))
        for (coarse, fine), n in order:
            tree.setdefault(coarse, {})[fine] = n
        return tree

    def spreads(self) -> dict[str, Spread]:
        return {
            name: Spread(
                n=len(values),
                mean=round(float(np.mean(values)), 2),
                median=float(np.median(values)),
                max=max(values),
            )
            for name, values in self.values.items()
            if values
        }


# --- stats.md --------------------------------------------------------------------------------------------


def _markdown(stats: Stats) -> str:
    return "\n\n".join(
        [
            "# What is in this dataset",
            _opening(stats),
            "## Overview, beside EW Table 6",
            _table(
                ["statistic", "here", f"paper ({PAPER})"],
                [
                    [name, "needs --timelines" if n is None else f"{n:,}", PAPER_OVERVIEW[name]]
                    for name, n in stats.overview.items()
                ],
            ),
            "## Rows per task, beside EW Table 8",
            "The paper counts before it holds out validation rows, so its figures stand beside both splits together."
            + (
                ""
                if stats.mixture == "full"
                else " This dataset is `balanced`; the paper's table is of the full mixture."
            ),
            _task_table(stats),
            f"## Mixture: rows, {stats.tokens_heading}",
            _mixture_table(stats, "adapter", "split", "source"),
            _mixture_table(stats, "adapter", "split", "source", "task"),
            f"## Length of a row in {stats.tokens_heading}",
            _length_table(stats),
            *_extracted_parts(stats),
            "## Pictures",
            "\n\n".join(f"![{name}]({file})" for name, file in stats.pictures.items()),
            "\n".join(f"- Left out: {name}: {why}" for name, why in stats.left_out.items())
            or "None was left out.",
        ]
    ) + "\n"  # fmt: skip


def _opening(stats: Stats) -> str:
    said = [f"Manifest `{stats.manifest_hash[:12]}`. Every count is of the rows and equals the manifest's."]
    tokens = stats.tokens
    if tokens is None:
        said.append("No tokenizer was given, so lengths are in characters; `--model NAME` counts tokens.")
    elif tokens.sample_share is None:
        said.append(f"Tokens are exact, by the tokenizer and chat template of {tokens.tokenizer}.")
    else:
        said.append(
            f"**Tokens are estimated** from {tokens.measured_rows:,} rows, a fixed {_percent(tokens.sample_share)} sample with "
            f"at least one row of each kind, by the tokenizer and chat template of {tokens.tokenizer}: measured tokens a "
            "character, times the characters of all rows. `--exact` counts every row."
        )
    if tokens is not None:
        for kind, refused in tokens.refused.items():
            said.append(
                f"{_plural(refused['count'], 'row')} cannot be tokenised ({kind}), such as "
                f"{', '.join(refused['examples'])}: left out of the {'tokens' if tokens.exact else 'sample'}."
            )
    return " ".join(said)


def _table(head: list[str], lines: Iterable[Sequence[str]], *, text: Sequence[int] = (0,)) -> str:
    """Return a Markdown table; the columns in `text` stand to the left, all others are numbers."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    rule = ["---" if i in text else "---:" for i in range(len(head))]
    return "\n".join([line(head), line(rule), *map(line, lines)])


def _task_table(stats: Stats) -> str:
    rows: Counter[tuple[str, str]] = Counter()
    turns: Counter[str] = Counter()
    for cell in stats.mixture_lines:
        if cell.task in TASKS:
            rows[cell.task, cell.split] += cell.rows
            turns[cell.task] += cell.assistant_turns

    def line(name: str, tasks: Sequence[str]) -> list[str]:
        train, validation = (sum(rows[task, split] for task in tasks) for split in SPLITS)
        paper = [sum(PAPER_TASKS[task][i] for task in tasks) for i in range(2)]
        here = [train, validation, train + validation, sum(turns[task] for task in tasks)]
        return [name, *(f"{n:,}" for n in (*here, *paper))]

    lines = []
    for adapter in ADAPTERS:
        tasks = [task for task in PAPER_TASKS if TASKS[task].adapter == adapter]  # type: ignore[index]
        lines += [line(f"`{task}`", [task]) for task in tasks]
        lines.append(line(f"**{adapter}**", tasks))
    lines.append(line("**Total**", list(PAPER_TASKS)))
    head = ["task", "train", "validation", "rows", "assistant turns", "paper: samples", "paper: turns"]
    return _table(head, lines)


def _share(part: int | None, whole: int | None) -> str:
    return "" if part is None or not whole else f"{part / whole:.1%}"


def _number(n: int | None) -> str:
    return "not measured" if n is None else f"{n:,}"


def _mixture_measures(stats: Stats) -> dict[str, str]:
    """Return the columns that a mixture is told in: field -> heading."""
    marked = stats.tokens_heading
    if stats.tokens is None:
        return {
            "rows": "rows",
            "characters": "characters",
            "supervised_characters": "supervised characters",
        }
    return {"rows": "rows", "tokens": marked, "supervised_tokens": f"supervised {marked}"}


def _sum_of(lines: Iterable[MixtureLine], name: str) -> int | None:
    """Return a column's sum, None where a part of it was not measured."""
    parts = [getattr(line, name) for line in lines]
    return None if None in parts else sum(parts)


def _mixture_table(stats: Stats, *by: str) -> str:
    """The realised mixture by some of adapter, split, source and task; shares are of an adapter's split."""

    def grouped(*fields: str) -> dict[tuple[str, ...], list[MixtureLine]]:
        groups: dict[tuple[str, ...], list[MixtureLine]] = {}
        for line in stats.mixture_lines:
            groups.setdefault(tuple(getattr(line, name) for name in fields), []).append(line)
        return groups

    measures, whole, table = _mixture_measures(stats), grouped("adapter", "split"), []
    for key, lines in grouped(*by).items():
        cells = [*key]
        for name in measures:
            n = _sum_of(lines, name)
            cells += [_number(n), _share(n, _sum_of(whole[key[:2]], name))]
        table.append(cells)
    head = [*by, *(h for name in measures.values() for h in (name, "share"))]
    return _table(head, table, text=range(len(by)))


def _length_table(stats: Stats) -> str:
    head = ["adapter", "task", "n", *(f"{name}, {stats.tokens_heading}" for name in ("median", "p95", "max"))]
    lines = [
        [x.adapter, x.task, f"{x.n:,}", f"{x.median:,}", f"{x.p95:,}", f"{x.max:,}"] for x in stats.lengths
    ]
    if stats.tokens is not None:
        head.append("paper: median, cl100k_base (EW D.2)")
        lines = [[*cells, PAPER_MEDIAN_TOKENS.get(cells[1], "")] for cells in lines]
    return _table(head, lines, text=range(2))


def _extracted_parts(stats: Stats) -> list[str]:
    if stats.extracted is None or stats.dimensions is None:
        return []
    lines = [
        [name, f"{s.n:,}", f"{s.mean:,.1f}", f"{s.median:,.1f}", f"{s.max:,}", PAPER_MEDIANS.get(name, "")]
        for name, s in stats.extracted.items()
    ]
    parts = ["## Extracted data, beside EW Figure 6 and D.1"]
    parts.append(_table(["statistic", "n", "mean", "median", "max", "paper: median"], lines))
    parts.append("## Dimensions of the open schema, beside EW Figure 4")
    lines = [
        [kind, f"{len(held):,}", PAPER_DIMENSIONS[kind], ", ".join(f"{x} ({n})" for x, n in list(held.items())[:15])]
        for kind, held in stats.dimensions.items()
    ]  # fmt: skip
    head = ["kind", "different", "paper: different", "most frequent (characters, or books, that have it)"]
    return [*parts, _table(head, lines, text=(0, 3))]


# --- pictures --------------------------------------------------------------------------------------------

# Okabe and Ito's colours, told apart by every kind of colour sight.
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)
GREY, INK = "#8A8A8A", "#222222"
_DASHES = (0, (2, 1.5))
_ADAPTER_COLOURS = {"world_model": BLUE, "character_agent": VERMILLION}
_LENGTHS, _HISTOGRAMS = "Length of a row per task", "Extracted data at four levels"
_GENRES, _CLOUDS = "Genres", "Dimensions of the open schema"
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.edgecolor": "#777777",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def _draw(
    folder: Path,
    count: _Count,
    extracted: _Extracted | None,
    tokenizer: ChatTokenizer | None,
    exact: bool,
    share: float,
) -> tuple[dict[str, str], dict[str, str]]:
    """Draw every picture that there is data for; return their files, and the others with the reason."""
    import matplotlib

    pictures: dict[str, str] = {}
    left_out: dict[str, str] = {}

    def save(name: str, file: str, figure: Figure) -> None:
        figure.savefig(
            folder / file,
            dpi=130,
            facecolor="white",
            bbox_inches="tight",
            pad_inches=0.2,
            metadata={"Software": None},
        )
        pictures[name] = file

    with matplotlib.rc_context(_STYLE):
        if lengths := count.lengths():
            if tokenizer is None:
                unit, sample = "characters", ""
            else:
                unit, sample = "tokens", "" if exact else f", a {_percent(share)} sample"
            rows = sum(cell.rows for cell in count.cells.values())
            save(_LENGTHS, "lengths.png", _draw_lengths(lengths, unit, sample, rows))
        else:
            left_out[_LENGTHS] = "no row could be measured."
        if extracted is None:
            for name in (_HISTOGRAMS, _GENRES, _CLOUDS):
                left_out[name] = "it is drawn from the timelines; name them with --timelines."
            return pictures, left_out
        save(_HISTOGRAMS, "extracted.png", _draw_extracted(extracted))
        if any(coarse for coarse, _ in extracted.genres):
            save(_GENRES, "genres.png", _draw_genres(extracted))
        else:
            left_out[_GENRES] = "no book has a genre."
        clouds = {kind: held for kind, held in extracted.dimension_counts().items() if held}
        drawable = {kind: _drawable(held) for kind, held in clouds.items()}
        drawable = {kind: held for kind, held in drawable.items() if held}
        undrawn = sum(map(len, clouds.values())) - sum(map(len, drawable.values()))
        if drawable:
            save(_CLOUDS, "dimensions.png", _draw_clouds(drawable, extracted))
        if not clouds:
            left_out[_CLOUDS] = "no profile and no global state has `**Dimension**` headings."
        elif undrawn:
            left_out[f"{_CLOUDS}, {undrawn} of them"] = (
                "the font has no letters for them; stats.json has all."
            )
    return pictures, left_out


def _draw_lengths(lengths: Mapping[tuple[str, str], np.ndarray], unit: str, sample: str, rows: int) -> Figure:
    """One row of a ridge a task, on a common logarithmic axis."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low = max(1, min(int(values.min()) for values in lengths.values()))
    high = max(int(values.max()) for values in lengths.values())
    edges = np.geomspace(low / 1.15, high * 1.15, 56)
    figure = Figure(figsize=(11, 1.6 + 0.72 * len(lengths)), layout="constrained")
    axes = figure.add_subplot()
    for i, ((adapter, task), values) in enumerate(lengths.items()):
        base = len(lengths) - 1 - i
        heights = np.histogram(values, edges)[0]
        colour = _ADAPTER_COLOURS[adapter]
        general = task == GENERAL
        axes.axhline(base, color="#DDDDDD", linewidth=0.8, zorder=0)
        axes.stairs(
            base + 0.82 * heights / heights.max(),
            edges,
            baseline=base,
            fill=True,
            facecolor=colour,
            alpha=0.45 if general else 0.85,
            hatch="////" if general else None,
            edgecolor="white" if general else colour,
        )
        median, p95 = np.percentile(values, [50, 95])
        axes.plot([median, median], [base, base + 0.86], color=INK, linewidth=1.8)
        axes.plot([p95, p95], [base, base + 0.5], color=INK, linewidth=1.4, linestyle=_DASHES)
        axes.text(
            1.012, base + 0.18, f"{_short(median)} · {_short(p95)} · {_short(values.max())}",
            transform=axes.get_yaxis_transform(), va="bottom", fontsize=10,
        )  # fmt: skip
    axes.text(
        1.012, len(lengths) - 0.02, "median · p95 · max", transform=axes.get_yaxis_transform(), va="bottom",
        fontsize=10, color="#555555",
    )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(-0.15, len(lengths) + 0.1)
    axes.set_yticks(
        [len(lengths) - 1 - i + 0.3 for i in range(len(lengths))],
        [f"{task}\nn = {len(values):,}" for (_, task), values in lengths.items()],
    )
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.grid(axis="x", color="#EEEEEE")
    axes.set_xlabel(f"{unit.capitalize()} per row{sample} (logarithmic; each task scaled to its own peak)")
    handles: list[Any] = [Patch(facecolor=colour, label=name) for name, colour in _ADAPTER_COLOURS.items()]
    handles.append(Line2D([], [], color=INK, linewidth=1.8, label="median"))
    handles.append(Line2D([], [], color=INK, linewidth=1.4, linestyle=_DASHES, label="p95"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    measured = sum(len(values) for values in lengths.values())
    of = f"{measured:,} rows" if measured == rows else f"{measured:,} of {rows:,} rows{sample}"
    _title(figure, f"{unit.capitalize()} per row and task, n = {of}")
    return figure


def _short(value: float) -> str:
    return f"{value / 1000:,.1f}k" if value >= 1000 else f"{value:,.0f}"


def _draw_extracted(extracted: _Extracted) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    figure = Figure(figsize=(15, 7.6), layout=ConstrainedLayoutEngine(hspace=0.08, wspace=0.04))
    levels = dict.fromkeys(("scenes", "characters", "locations"), BLUE)
    levels |= {"interactions": GREEN, "cast size": GREEN, "profile updates": PURPLE}
    levels |= {"global updates": ORANGE, "location updates": ORANGE}
    for i, (name, values) in enumerate(extracted.values.items()):
        axes: Axes = figure.add_subplot(2, 4, i + 1)
        what, _, holder = name.partition(" per ")
        axes.set_title(f"{name.capitalize()}\nn = {_plural(len(values), holder)}", loc="left")
        axes.set_xlabel(what.capitalize())
        axes.set_ylabel(f"{holder.capitalize()}s")
        if not values:
            axes.text(
                0.5, 0.5, "no source records this", transform=axes.transAxes, ha="center", color="#555555"
            )
            continue
        axes.hist(values, bins=_bins(values), color=levels[what], edgecolor="white", linewidth=0.8)
        mean, median = float(np.mean(values)), float(np.median(values))
        axes.axvline(mean, color=INK, linewidth=1.8, label=f"mean {mean:,.1f}")
        axes.axvline(median, color=INK, linewidth=1.8, linestyle=_DASHES, label=f"median {median:,.1f}")
        axes.legend(frameon=True, framealpha=0.9, edgecolor="none", fontsize=9, loc="upper right")
        low, high = min(values), max(values)
        if high - low < 6:
            axes.set_xlim(low - 0.5 - (6 - high + low) / 2, high + 0.5 + (6 - high + low) / 2)
            axes.set_xticks(range(low, high + 1))
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_ylim(0, axes.get_ylim()[1] * 1.18)
        axes.grid(axis="y", color="#EEEEEE")
    books = _plural(extracted.num_books, "book")
    _title(figure, f"Extracted data per book, scene, character and world, n = {books}")
    return figure


def _bins(values: Sequence[int]) -> list[float]:
    """Return edges of at most thirty equal bins that no whole number falls between."""
    low, high = min(values), max(values)
    width = max(1, -(-(high - low + 1) // 30))
    return [edge - 0.5 for edge in range(low, high + width + 1, width)]


def _draw_genres(extracted: _Extracted) -> Figure:
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure

    tree = extracted.genre_counts()
    books = extracted.num_books
    hues = cycle((BLUE, ORANGE, GREEN, PURPLE, VERMILLION, SKY))
    colours = dict(zip((name for name in tree if name), hues, strict=False))
    colours[""] = GREY
    figure = Figure(figsize=(11, 8))
    axes = figure.add_subplot()
    inner, outer, outer_colours, labels = [], [], [], []
    for coarse, fine in tree.items():
        inner.append(sum(fine.values()))
        red, green, blue = to_rgb(colours[coarse])
        for i, (name, n) in enumerate(fine.items()):
            paler = 0.35 + 0.35 * (i % 2)
            outer.append(n)
            outer_colours.append(
                (red + (1 - red) * paler, green + (1 - green) * paler, blue + (1 - blue) * paler)
            )
            labels.append(f"{name or 'not given'} ({n})")
    edge = {"edgecolor": "white", "linewidth": 2}
    coarse_wedges = axes.pie(
        inner, radius=0.72, colors=[colours[name] for name in tree], startangle=90, counterclock=False,
        wedgeprops={"width": 0.32, **edge},
    )[0]  # fmt: skip
    axes.pie(
        outer, radius=1, colors=outer_colours, labels=labels, rotatelabels=len(outer) > 12, startangle=90,
        counterclock=False, labeldistance=1.04, wedgeprops={"width": 0.27, **edge}, textprops={"fontsize": 10},
    )  # fmt: skip
    axes.text(
        0,
        0,
        f"{books:,}\nbook{'s' if books != 1 else ''}",
        ha="center",
        va="center",
        fontsize=15,
        weight="bold",
    )
    axes.legend(
        coarse_wedges,
        [f"{name or 'not given'}: {n} ({n / books:.1%})" for name, n in zip(tree, inner, strict=True)],
        title="Inner ring: coarse genre", loc="center left", bbox_to_anchor=(1.3, 0.5), frameon=False,
        alignment="left",
    )  # fmt: skip
    _title(figure, f"Genres, coarse and fine, n = {_plural(books, 'book')}")
    return figure


def _font_path() -> str:
    from matplotlib.font_manager import findfont

    return str(findfont("DejaVu Sans"))


def _drawable(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the names that the font of the pictures has every letter of."""
    from matplotlib.ft2font import FT2Font

    font = FT2Font(_font_path())
    return {name: n for name, n in counts.items() if all(font.get_char_index(ord(c)) for c in name)}


def _draw_clouds(clouds: Mapping[str, Mapping[str, int]], extracted: _Extracted) -> Figure:
    from matplotlib.figure import Figure

    titles = {"profile": ("Character profiles", "character"), "global_state": ("Global world states", "book")}
    figure = Figure(figsize=(8 * len(clouds), 6), layout="constrained")
    for i, (kind, counts) in enumerate(clouds.items()):
        cloud = _cloud(counts)
        axes = figure.add_subplot(1, len(clouds), i + 1)
        axes.imshow(cloud.to_array(), interpolation="bilinear")
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_color("#DDDDDD")
            spine.set_visible(True)
        title, holder = titles[kind]
        shown, known = len(cloud.words_), len(extracted.holders[kind])
        of = f"{known:,}" if shown == known else f"{shown:,} of {known:,}"
        n = _plural(extracted.num_holders[kind], holder)
        axes.set_title(f"{title}: {of} dimensions, n = {n}", fontsize=13, loc="left")
    _title(figure, "Dimensions of the open schema; the larger, the more characters, or books, have it")
    return figure


def _cloud(counts: Mapping[str, int]) -> WordCloud:
    """Return a cloud of the most frequent names in which equal counts have equal sizes, if they fit so."""
    from wordcloud import WordCloud

    inks = dict(zip(counts, cycle(("#00507D", "#9A4300", "#00674B", "#8A3A66", "#444444")), strict=False))
    most = dict(list(counts.items())[:100])
    for largest in (100, 76, 58, 44, 34):
        cloud = WordCloud(
            width=1200, height=800, background_color="white", font_path=_font_path(), prefer_horizontal=1.0,
            relative_scaling=0.6, max_words=len(most), min_font_size=12, max_font_size=largest, font_step=4,
            margin=10, random_state=0, color_func=lambda word, **_: inks[word],
        ).generate_from_frequencies(most)  # fmt: skip
        sizes: dict[float, set[int]] = {}
        for (_, share), size, *_ in cloud.layout_:
            sizes.setdefault(share, set()).add(size)
        if len(cloud.layout_) == len(most) and all(len(found) == 1 for found in sizes.values()):
            break
    return cloud


def _plural(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _title(figure: Figure, text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontsize=14, weight="bold")
