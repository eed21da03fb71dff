"""A made-up corpus of the paper's size: valid timelines, and general chat rows, from a seed.

Its totals are those of EW Table 6, exactly so at scale 1; its rates and lengths are set so that a build's
rows come near EW Table 8 and the medians of EW Figure 7. Its words mean nothing: it is for timing alone.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from itertools import accumulate, product
from math import exp
from pathlib import Path
from statistics import NormalDist
from typing import Any

from ewtrain.story import ENVIRONMENT

# EW Table 6.
BOOKS, SCENES, INTERACTIONS, CHARACTERS, LOCATIONS = 57, 9_763, 132_800, 3_311, 1_888

# The one of a thousand seeds whose books, split by build seed 0, come nearest to the 7,958 training scenes
# of EW Table 8: an average draw has 7,390.
SEED = 886

# Spreads (sigma of a log-normal) that turn the means above into the medians of EW Figure 6: 160 scenes,
# 43 characters, 25 locations a book.
SCENES_SPREAD, CHARACTERS_SPREAD, LOCATIONS_SPREAD, TURNS_SPREAD = 0.4, 0.82, 0.78, 0.5

CAST_SIZES = {1: 10, 2: 30, 3: 27, 4: 16, 5: 9, 6: 5, 8: 3}  # mean 3.1: EW Table 8's 24,977 / 7,958
CHANGE_RATE = 6_357 / 108_831  # EW Table 8: (14,315 - 7,958) changing interactions of 108,831


def _items(text: str, separator: str | None = None) -> list[str]:
    return text.split(separator)


_COMMON = _items(
    "the of and a to in he she it was that his her with had as for on at not but they be by from were "
    "which all this have would when there out who what their then into could one no so up him some more "
    "said now down before over time like only after little two than old about any other its where through "
    "hand came long back way again head eye never night house door still day own went must face without "
    "while made room upon let thing life think long place nothing seem turn stand light under against "
    "word always"
)
_STEMS = _items(
    "harbour lantern quarrel merchant orchard whisper velvet shadow bargain carriage kitchen sermon "
    "ledger timber feather hollow garden widow soldier furnace marble cellar tavern letter river bridge "
    "market weather silver copper thunder winter summer corner shutter candle barrel anchor compass "
    "stranger servant captain cousin brother sister daughter husband doctor lawyer teacher painter sailor "
    "farmer murmur linger tremble gather wander follow answer wonder remember consider measure promise "
    "deliver suffer conceal forgive surrender astonish hesitate persuade reproach venture abandon endure "
    "resent admire despise inherit squander bewilder smoulder flicker glimmer clatter shiver stammer "
    "scatter"
)
_ENDINGS = ("", "s", "ed", "ing", "er", "ly", "ish", "less")
WORDS = (*_COMMON, *(stem + ending for ending, stem in product(_ENDINGS, _STEMS)))
_WORD_WEIGHTS = list(accumulate(1 / (rank + 8) for rank in range(len(WORDS))))  # Zipf's law

_SYLLABLES = _items(
    "ar bel cor dan el fen gar hal is jor kes lor mar nel os per quin ros sel tor ul ver wil yar"
)
_FIRST_NAMES = list(dict.fromkeys((a + b).capitalize() for a, b in product(_SYLLABLES, _SYLLABLES)))
_PLACES = _items("House Quay Inn Chapel Mill Road Garden Court Cellar Bridge Market Tower Farm School Ship")
_PROFILE = _items(
    "Social Standing|Core Personality|Key Relationships|Profession|Manner of Speech|Beliefs|Wants and Fears",
    "|",
)
_WORLD = _items(
    "Cultural Values|Social Order|Economy|Law|Faith|Household|Travel|Rumours|Weather|Recent Events|"
    "War|Custom",
    "|",
)


class Writer:
    """Draws words, sentences and states."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def prose(self, mean: int) -> str:
        """Return sentences of about `mean` words."""
        left = max(4, round(mean * self.rng.uniform(0.7, 1.3)))
        sentences = []
        while left > 0:
            count = min(left, self.rng.randint(6, 18))
            words = self.rng.choices(WORDS, cum_weights=_WORD_WEIGHTS, k=count)
            if count > 9:
                words[count // 2] += ","
            sentence = " ".join(words)
            sentences.append(f"{sentence[0].upper()}{sentence[1:]}.")
            left -= count
        return " ".join(sentences)

    def short_description(self, name: str) -> str:
        """Return 50 to 80 words, as EW Table 30 wants them."""
        words = self.rng.choices(WORDS, cum_weights=_WORD_WEIGHTS, k=self.rng.randint(62, 78))
        words[20] += "."
        words[45] += ","
        return f"{name} {' '.join(words)}."

    def sections(self, titles: Sequence[str], mean: int) -> list[str]:
        """Return one Markdown section for each title, `mean` words long in all."""
        return [f"**{title}**\n{self.prose(mean // len(titles))}" for title in titles]

    def rewrite_one(self, sections: list[str]) -> str:
        """Rewrite one section in place and return the whole state."""
        at = self.rng.randrange(len(sections))
        title, _, body = sections[at].partition("\n")
        sections[at] = f"{title}\n{self.prose(len(body.split()))}"
        return "\n\n".join(sections)

    def entities(self, count: int, mean: int) -> list[dict[str, str]]:
        names = self.rng.sample(_STEMS, count)
        return [{"name": f"the {name}", "state": self.prose(mean)} for name in names]

    def place_state(self) -> dict[str, Any]:
        """Return a flat or a grouped location state."""
        state: dict[str, Any] = {"description": self.prose(53)}
        if self.rng.random() < 0.6:
            return {**state, "important_entities": self.entities(6, 25)}
        subs = [
            {"name": f"the {name}", "description": self.prose(22), "important_entities": self.entities(2, 20)}
            for name in self.rng.sample(_STEMS, 3)
        ]
        return {**state, "sub_locations": subs}

    def changed_place(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a location state with one entity in a new state."""
        changed: dict[str, Any] = json.loads(json.dumps(state))
        group = self.rng.choice(changed["sub_locations"]) if "sub_locations" in changed else changed
        self.rng.choice(group["important_entities"])["state"] = self.prose(25)
        return changed

    def turn(self, actors: list[str]) -> str:
        if actors == [ENVIRONMENT]:
            return self.prose(30)
        thinks, acts = self.rng.random() < 0.35, self.rng.random() < 0.5
        parts = [self.prose(22)]
        if thinks:
            parts.insert(0, f"[{self.prose(18)}]")
        if acts:
            parts.insert(self.rng.randint(0, len(parts)), f"({self.prose(14)})")
        return " ".join(parts)


def _drawn(rng: random.Random, items: Sequence[str], count: int) -> list[str]:
    """Return `count` different items, the first ones far likelier (Zipf's law again)."""
    weights = list(accumulate(1 / (rank + 2) for rank in range(len(items))))
    drawn: dict[str, None] = {}
    while len(drawn) < min(count, len(items)):
        drawn[rng.choices(items, cum_weights=weights)[0]] = None
    return list(drawn)


def _actors(rng: random.Random, cast: list[str], previous: list[str]) -> list[str]:
    """Return who acts: rarely Environment or a group, never the set that acted just before."""
    while True:
        kind = rng.random()
        if kind < 0.02 or (len(cast) == 1 and previous == cast):
            actors = [ENVIRONMENT]
        elif kind < 0.03 and len(cast) > 1:
            actors = sorted(rng.sample(cast, rng.randint(2, min(3, len(cast)))), key=cast.index)
        else:
            actors = _drawn(rng, cast, 1)
        if actors != previous:
            return actors


def make_book(
    book_id: str, num_characters: int, num_locations: int, turns: Sequence[int], seed: int = SEED
) -> dict[str, Any]:
    """Return a timeline as JSON, its scenes of as many interactions as `turns` says."""
    rng = random.Random(f"{seed} {book_id}")
    writer = Writer(rng)
    firsts = rng.sample(_FIRST_NAMES, num_characters)
    names = [f"{first} {rng.choice(_SYLLABLES).capitalize()}ton" for first in firsts]
    places = [f"{first} {rng.choice(_PLACES)}" for first in rng.sample(_FIRST_NAMES, num_locations)]
    profiles = {name: writer.sections(_PROFILE, 500) for name in names}
    states = {place: writer.place_state() for place in places}
    world = writer.sections(_WORLD, 1_900)
    timeline: dict[str, Any] = {
        "schema_version": 1,
        "book": {"book_id": book_id, "title": book_id.title(), "author": "Nobody"},
        "characters": [
            {
                "name": name,
                "aliases": [first],
                "initial": {
                    "profile": "\n\n".join(profiles[name]),
                    "hidden_tracker": None,
                    "short_description": writer.short_description(name),
                },
            }
            for name, first in zip(names, firsts, strict=True)
        ],
        "locations": [
            {"name": place, "description": writer.prose(25), "initial": states[place]} for place in places
        ],
        "initial_global_state": "\n\n".join(world),
    }
    timeline["scenes"] = [
        _scene(writer, index, names, places, profiles, states, world, count)
        for index, count in enumerate(turns)
    ]
    return timeline


def _scene(
    writer: Writer,
    index: int,
    names: list[str],
    places: list[str],
    profiles: dict[str, list[str]],
    states: dict[str, dict[str, Any]],
    world: list[str],
    num_turns: int,
) -> dict[str, Any]:
    """Return a scene; the profiles, place states and world it leaves are written to the arguments."""
    rng = writer.rng
    cast = _drawn(rng, names, rng.choices(list(CAST_SIZES), list(CAST_SIZES.values()))[0])
    location = None if rng.random() < 0.03 else _drawn(rng, places, 1)[0]
    interactions: list[dict[str, Any]] = []
    actors: list[str] = []
    for _ in range(num_turns):
        actors = _actors(rng, cast, actors)
        interaction: dict[str, Any] = {"actors": actors, "content": writer.turn(actors)}
        if rng.random() < CHANGE_RATE:
            if location is None or rng.random() < 0.25:
                interaction["global_state"] = writer.rewrite_one(world)
            else:
                states[location] = interaction["location_state"] = writer.changed_place(states[location])
        interactions.append(interaction)
    return {
        "index": index,
        "location": location,
        "scenario": writer.prose(170),
        "cast": cast,
        "motivations": {name: writer.prose(40) for name in cast},
        "interactions": interactions,
        "character_updates": {
            name: {
                "hidden_tracker": writer.prose(90),
                "profile": writer.rewrite_one(profiles[name]) if rng.random() < 0.35 else None,
                "short_description": writer.short_description(name),
            }
            for name in cast
        },
    }


def _apportion(total: int, weights: Sequence[float], least: int = 1) -> list[int]:
    """Return whole shares of a total in proportion to weights, none below `least`."""
    spare = total - least * len(weights)
    quotas = [spare * weight / sum(weights) for weight in weights]
    shares = [int(quota) for quota in quotas]
    by_rest = sorted(range(len(quotas)), key=lambda i: shares[i] - quotas[i])
    for i in by_rest[: spare - sum(shares)]:
        shares[i] += 1
    return [least + share for share in shares]


def _quantiles(count: int, spread: float) -> list[float]:
    """Return a log-normal's evenly spaced quantiles, rising: few books follow it as well as many."""
    return [exp(spread * NormalDist().inv_cdf((i + 0.5) / count)) for i in range(count)]


def make_corpus(scale: float = 1.0, seed: int = SEED) -> Iterator[dict[str, Any]]:
    """Yield the books of a corpus of `scale` times the paper's size; longer books have more of everything."""
    rng = random.Random(f"{seed} corpus")
    count = max(1, round(BOOKS * scale))
    scenes = _apportion(round(SCENES * scale), _quantiles(count, SCENES_SPREAD))
    characters = _apportion(round(CHARACTERS * scale), _quantiles(count, CHARACTERS_SPREAD))
    locations = _apportion(round(LOCATIONS * scale), _quantiles(count, LOCATIONS_SPREAD))
    weights = [rng.lognormvariate(0, TURNS_SPREAD) for _ in range(sum(scenes))]
    turns = iter(_apportion(round(INTERACTIONS * scale), weights, 2))
    sizes = list(zip(scenes, characters, locations, strict=True))
    random.Random(f"{seed} order").shuffle(sizes)
    for i, (num_scenes, num_characters, num_locations) in enumerate(sizes):
        book_turns = [next(turns) for _ in range(num_scenes)]
        yield make_book(f"book-{i:02}", num_characters, num_locations, book_turns, seed)


def write_corpus(folder: Path, scale: float = 1.0, seed: int = SEED) -> None:
    """Write a corpus into a new folder, a file for each book."""
    folder.mkdir(parents=True)
    for timeline in make_corpus(scale, seed):
        _write_json(folder / f"{timeline['book']['book_id']}.timeline.json", timeline)


def write_long_book(path: Path, num_scenes: int = 1_000, seed: int = SEED) -> None:
    """Write a book of many scenes, with the corpus's means of everything else."""
    rng = random.Random(f"{seed} long book")
    weights = [rng.lognormvariate(0, TURNS_SPREAD) for _ in range(num_scenes)]
    turns = _apportion(round(num_scenes * INTERACTIONS / SCENES), weights, 2)
    characters, locations = (round(num_scenes * total / SCENES) for total in (CHARACTERS, LOCATIONS))
    _write_json(path, make_book("long-book", characters, locations, turns, seed))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def write_general(path: Path, num_rows: int, seed: int = SEED) -> None:
    """Write general chat rows of one to three exchanges as JSONL."""
    rng = random.Random(f"{seed} general")
    writer = Writer(rng)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(num_rows):
            messages = []
            for _ in range(rng.choice((1, 1, 1, 2, 3))):
                messages.append({"role": "user", "content": writer.prose(60)})
                messages.append({"role": "assistant", "content": writer.prose(220)})
            file.write(json.dumps({"messages": messages}) + "\n")
