"""What the timelines of a dataset hold (EW Figures 4, 6 and 7)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from data_builders.build import Progress
from data_builders.timelines import find_timelines
from ewtrain.errors import DataError
from ewtrain.files import file_hash
from ewtrain.story import Timeline
from ewtrain.timeline_file import read_timeline

_MEASURES = (
    "scenes per book",
    "characters per book",
    "locations per book",
    "interactions per scene",
    "cast size per scene",
    "profile updates per character",
    "global updates per book",
    "location updates per location",
)


class Spread(BaseModel, frozen=True):
    n: int
    mean: float
    median: float
    max: int


# `**Name**` alone on its line, or with a colon before the text; bold words inside a sentence are none.
_DIMENSION = re.compile(r"^\W{0,4}\*\*([^*\n]{1,80}?)(?::\*\*|\*\*:|\*\*[ \t]*$)", re.MULTILINE)


def dimensions(markdown: str | None) -> list[str]:
    """Return the `**Dimension**` headings of a profile or global state, in order."""
    names = (" ".join(name.split()).strip(" :") for name in _DIMENSION.findall(markdown or ""))
    return [name for name in names if name]


@dataclass
class Extracted:
    """What the timelines hold, read one book at a time. A book counts only where its source keeps such things."""

    values: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in _MEASURES})
    # Dimension (case folded) -> the characters, or books, that ever have it; and its first spelling.
    holders: dict[str, Counter[str]] = field(
        default_factory=lambda: {"profile": Counter(), "global_state": Counter()}
    )
    spelling: dict[str, str] = field(default_factory=dict)
    num_holders: Counter[str] = field(default_factory=Counter)
    genres: Counter[tuple[str, str]] = field(default_factory=Counter)
    num_books: int = 0

    @classmethod
    def read(cls, paths: Sequence[Path], manifest: dict[str, Any], progress: Progress) -> Extracted:
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
