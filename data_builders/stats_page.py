"""`stats.md`: a dataset's statistics in tables, beside the paper's own figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from data_builders.mixture import SPLITS
from data_builders.stats_rows import MixtureLine
from ewtrain.chat import ADAPTERS
from ewtrain.tasks import TASKS

if TYPE_CHECKING:
    from data_builders.stats import Stats

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


def markdown(stats: Stats) -> str:
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
            f"## Mixture: rows, {_unit(stats)}",
            _mixture_table(stats, "adapter", "split", "source"),
            _mixture_table(stats, "adapter", "split", "source", "task"),
            f"## Length of a row in {_unit(stats)}",
            _length_table(stats),
            *_extracted_parts(stats),
            "## Pictures",
            "\n\n".join(f"![{name}]({file})" for name, file in stats.pictures.items()),
            "\n".join(f"- Left out: {name}: {why}" for name, why in stats.left_out.items())
            or "None was left out.",
        ]
    ) + "\n"  # fmt: skip


def _unit(stats: Stats) -> str:
    """Return what a heading over lengths says."""
    if stats.tokens is None:
        return "characters"
    share = stats.tokens.sample_share
    return "tokens" if share is None else f"tokens ({percent(share)} sample)"


def _opening(stats: Stats) -> str:
    said = [f"Manifest `{stats.manifest_hash[:12]}`. Every count is of the rows and equals the manifest's."]
    tokens = stats.tokens
    if tokens is None:
        said.append("No tokenizer was given, so lengths are in characters; `--model NAME` counts tokens.")
    elif tokens.sample_share is None:
        said.append(f"Tokens are exact, by the tokenizer and chat template of {tokens.tokenizer}.")
    else:
        said.append(
            f"**Tokens are estimated** from {tokens.measured_rows:,} rows, a fixed {percent(tokens.sample_share)} sample with "
            f"at least one row of each kind, by the tokenizer and chat template of {tokens.tokenizer}: measured tokens a "
            "character, times the characters of all rows. `--exact` counts every row."
        )
    if tokens is not None:
        for kind, refused in tokens.refused.items():
            said.append(
                f"{plural(refused['count'], 'row')} cannot be tokenised ({kind}), such as "
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
    field, heading = "characters" if stats.tokens is None else "tokens", _unit(stats)
    return {"rows": "rows", field: heading, f"supervised_{field}": f"supervised {heading}"}


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
    head = ["adapter", "task", "n", *(f"{name}, {_unit(stats)}" for name in ("median", "p95", "max"))]
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


def percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def plural(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
