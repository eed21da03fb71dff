"""What an importer read, set aside, changed and added: counted as it goes, and told at the end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ewtrain.story import Book, TaskName, Timeline

Kind = Literal["set_aside", "changed", "added", "noted"]

_HEADINGS: dict[Kind, str] = {
    "set_aside": "set aside",
    "changed": "changed",
    "added": "added",
    "noted": "to know",
}

_MAX_EXAMPLES = 3
_EXCERPT = 60
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Tally:
    """How often one thing happened, in words, with up to three places where it did."""

    what: str
    count: int
    examples: tuple[str, ...]


@dataclass
class FieldUse:
    """How often a field could stand in the source, how often it was blank or missing, under which keys."""

    usual_key: str
    occurrences: int = 0
    empty: int = 0
    keys: dict[str, int] = field(default_factory=dict)

    @property
    def mostly_empty(self) -> bool:
        return 2 * self.empty > self.occurrences

    def add(self, key: str) -> None:
        self.keys[key] = self.keys.get(key, 0) + 1


@dataclass(frozen=True)
class ImportReport:
    """What an import read, wrote, set aside, changed and added; `str()` of it is for people."""

    source: str
    book: Book
    provides: tuple[TaskName, ...]
    not_provided: tuple[str, ...]
    read: dict[str, int]
    written: dict[str, int]
    set_aside: dict[str, Tally]
    changed: dict[str, Tally]
    added: dict[str, Tally]
    noted: dict[str, Tally]
    fields: dict[str, FieldUse]
    keys_not_read: tuple[str, ...]
    # What the importer itself warns of, beside fields that are mostly empty.
    cautions: tuple[str, ...] = ()

    @property
    def warnings(self) -> list[str]:
        sparse = [
            f"the {name} is empty or missing in {use.empty} of {use.occurrences} places"
            for name, use in self.fields.items()
            if use.mostly_empty
        ]
        return [*sparse, *self.cautions]

    def __str__(self) -> str:
        lines = [
            f'{self.source}: "{self.book.title}" by {self.book.author}, as {self.book.book_id}',
            "  read: " + _listed(self.read),
            "  written: " + _listed(self.written),
            "  tasks: " + ", ".join(self.provides),
            "  the source does not provide:",
            *(f"    {gap}" for gap in self.not_provided),
        ]
        lines += [f"  WARNING: {warning}" for warning in self.warnings]
        for kind, heading in _HEADINGS.items():
            tallies: dict[str, Tally] = getattr(self, kind)
            if tallies:
                lines.append(f"  {heading}:")
            for tally in tallies.values():
                lines.append(f"    {tally.count} x {tally.what}")
                lines += [f"        {example}" for example in tally.examples]
        drifted = {name: use.keys for name, use in self.fields.items() if use.keys.keys() - {use.usual_key}}
        if drifted:
            lines.append("  read under other keys than the usual:")
            lines += [f"    {name}: {_listed(keys)}" for name, keys in drifted.items()]
        if self.keys_not_read:
            lines.append("  keys not read: " + ", ".join(self.keys_not_read))
        return "\n".join(lines)


@dataclass(frozen=True)
class ImportedBook:
    timeline: Timeline
    report: ImportReport


class Account:
    """Counts what an importer meets, by reason; `reasons` says each one's kind and what it is in words."""

    def __init__(self, reasons: Mapping[str, tuple[Kind, str]]) -> None:
        self.reasons = reasons
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = {}

    def count(self, reason: str, where: str, text: str = "", times: int = 1) -> None:
        self._counts[reason] += times
        examples = self._examples.setdefault(reason, [])
        if len(examples) < _MAX_EXAMPLES:
            examples.append(f"{where}: {excerpt(text)}" if text else where)

    def tallies(self, kind: Kind) -> dict[str, Tally]:
        """Return what was counted of one kind, in the order of `reasons`."""
        return {
            reason: Tally(what, self._counts[reason], tuple(self._examples[reason]))
            for reason, (of_kind, what) in self.reasons.items()
            if of_kind == kind and self._counts[reason]
        }


def printable(text: str) -> str:
    """Return a text that can be written as UTF-8: half characters (lone surrogates) are replaced."""
    return SURROGATE.sub("\ufffd", text)


def excerpt(text: str) -> str:
    """Return a text's beginning, on one line."""
    text = " ".join(printable(text).split())
    return text if len(text) <= _EXCERPT else text[: _EXCERPT - 3].rstrip() + "..."


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
