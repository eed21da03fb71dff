"""CoSER's book files (`final/<book>.json`, `extracted/<book>.json`) to a timeline.

A book there is a list of plots, each with conversations: a scenario, key characters with a motivation, and
messages already marked as ours are. Each conversation becomes a scene. CoSER records no places, no world
state and no change of a character, so the timeline provides three tasks and nothing fills the gaps.

**Motivations.** A speaker who is no key character joins the cast, and CoSER gives him no motivation. He is
left out of `motivations`: such a gap is a fault only in a timeline that also provides `character_update`;
in a partial one it is a notice, a prompt shows `(Not recorded.)`, and the `motivation_update` row counts as
`not_in_source`.

**Characters.** CoSER's profiles are written from the whole book and its descriptions from a whole plot, so
neither is an initial state; `profiles_as_initial` takes the profiles all the same, as the spoilers they are.
"""

from __future__ import annotations

import gzip
import json
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ewtrain.content import control_strings, unclosed_brackets
from ewtrain.errors import ConfigError, DataError
from ewtrain.story import (
    ENVIRONMENT,
    SCENE_END,
    Book,
    Character,
    CharacterState,
    Scene,
    SceneInteraction,
    TaskName,
    Timeline,
)

PROVIDES: tuple[TaskName, ...] = ("motivation_update", "next_character", "interaction_gen")

NOT_PROVIDED = (
    "no places, no world or location states: no rows for location_scenario and world_update, and prompts "
    "show (Not recorded.) for them",
    "no record of how a scene changes a character: no rows for character_update; trackers and short "
    "descriptions show (Not recorded.)",
    "scenes picked from the book rather than all of it: no rows for scene_cast",
    "no author, title or language: author and title are taken from the options or the file's name, the "
    "language is taken to be English",
)

# Each field's spellings, the usual one first; whichever is there is read, and counted.
FIELDS: dict[str, tuple[str, ...]] = {
    "plot summary": ("summary",),
    "plot chapter": ("chapter",),
    "plot text": ("text",),
    "plot character's name": ("name", "character"),
    "plot character's description": ("description",),
    "plot character's experience": ("experience", "summary"),
    "scenario": ("scenario",),
    "topic": ("topic",),
    "key character's name": ("name", "character"),
    "motivation": ("motivation", "thought"),
    "speaker": ("character", "name"),
    "message": ("message", "thought", "description"),
    "profile": ("profile",),
}

Kind = Literal["set_aside", "changed", "added", "noted"]

REASONS: dict[str, tuple[Kind, str]] = {
    "plot_without_conversation": ("set_aside", "plots without a conversation"),
    "conversation_without_scenario": ("set_aside", "conversations without a scenario"),
    "conversation_without_dialogue": ("set_aside", "conversations without a usable message"),
    "conversation_without_cast": ("set_aside", "conversations in which no character takes part"),
    "message_without_scene": ("set_aside", "messages of conversations set aside"),
    "empty_message": ("set_aside", "empty messages"),
    "message_without_speaker": ("set_aside", "messages without a speaker"),
    "unnamed_key_character": ("set_aside", "key characters without a name"),
    "repeated_key_character": ("set_aside", "key characters named twice in one conversation"),
    "second_spelling": ("set_aside", "values of a field that stands under two keys, the first being read"),
    "reserved_name": ("set_aside", f"key characters called {ENVIRONMENT}, or names that read {SCENE_END}"),
    "think_close": ("set_aside", "texts with </think>, before which some chat templates delete everything"),
    "not_text": ("set_aside", "values that are not text"),
    "not_an_object": ("set_aside", "entries that are not the object or the list that stands in their place"),
    "plot_character_in_no_scene": ("set_aside", "a plot's characters who are in no scene"),
    "topic": ("set_aside", "topics: they tell what the conversation will come to"),
    "plot_text": ("set_aside", "plots' book text"),
    "plot_character_description": (
        "set_aside",
        "descriptions of a plot's characters, which know its end",
    ),
    "plot_character_experience": ("set_aside", "accounts of what happens to a plot's characters"),
    "whole_book_profile": ("set_aside", "profiles: written from the whole book, they give away its end"),
    "name_variant": ("changed", "names in another case or spacing, read as the known name"),
    "name_respelled": ("changed", "names brought to one line, single spaces and Unicode NFC"),
    "lone_surrogate": ("changed", "broken characters (lone surrogates) replaced by U+FFFD"),
    "chapter_says_none": ("changed", "chapters that read 'None', taken as absent"),
    "group_speaker": ("changed", "speakers that join cast members' names, read as a group of them"),
    "message_in_key": ("changed", "messages whose opening thought stood in place of the key, joined again"),
    "message_marked_as_thought": ("changed", "unmarked messages under the key 'thought', put in [...]"),
    "speaker_added_to_cast": ("added", "speakers who are no key characters, added to the scene's cast"),
    "profile_as_initial": ("added", "profiles of the whole book taken as initial profiles: SPOILERS"),
    "no_motivation": ("noted", "cast members whose motivation the source lacks, left without one"),
    "no_profile": ("noted", "characters without a profile"),
    "motivation_in_brackets": ("noted", "motivations written as one thought in [...], kept so"),
    "unclosed_bracket": ("noted", "brackets never closed, which run to the end of their line"),
    "control_string": ("noted", "control strings in the text, kept as ordinary text"),
}

_HEADINGS: dict[Kind, str] = {
    "set_aside": "set aside",
    "changed": "changed",
    "added": "added",
    "noted": "to know",
}

_MAX_EXAMPLES = 3
_SURROGATE = re.compile("[\ud800-\udfff]")
_JOINER = re.compile(r",\s*(?:and\s+)?|\s+and\s+|\s*&\s*", re.IGNORECASE)
_EXCERPT = 60


@dataclass(frozen=True)
class Tally:
    """How often one thing happened, in words, with up to three places where it did."""

    what: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class FieldUse:
    """How often a field could stand in the source, how often it was blank or missing, under which keys."""

    occurrences: int
    empty: int
    keys: dict[str, int]

    @property
    def mostly_empty(self) -> bool:
        return 2 * self.empty > self.occurrences


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

    @property
    def warnings(self) -> list[str]:
        found = [
            f"the {name} is empty or missing in {use.empty} of {use.occurrences} places"
            for name, use in self.fields.items()
            if use.mostly_empty
        ]
        if "profile_as_initial" in self.added:
            found.append("initial profiles are spoilers: they were written from the whole book")
        return found

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
        drifted = {n: u.keys for n, u in self.fields.items() if any(k != FIELDS[n][0] for k in u.keys)}
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


def import_coser(
    path: Path,
    *,
    book_id: str | None = None,
    title: str | None = None,
    author: str | None = None,
    profiles_as_initial: bool = False,
) -> ImportedBook:
    """Return the timeline of one CoSER book file (`.json` or `.json.gz`), and a report of the import.

    A file that is not CoSER's, or that holds no scene, is a DataError. What the file holds beyond a
    timeline, or holds in a form that a timeline refuses, is in the report.
    """
    path = Path(path)
    source = _load(path)
    book = _book(path, book_id, title, author)
    reader = _Reader()

    profiles = _read_profiles(source, reader)
    conversations = list(_read_conversations(source["plots"], reader))
    names = _Names([*(p.name for p in profiles), *(m.name for c in conversations for m in c.members)])
    scenes: list[Scene] = []
    for conversation in conversations:
        scene = _scene(len(scenes), conversation, names, reader)
        if scene is not None:
            scenes.append(scene)
    if not scenes:
        reasons = [f"{t.count} x {t.what}" for t in reader.tallies("set_aside").values()]
        raise DataError(
            f"{path}: no conversation in it makes a scene ({'; '.join(reasons) or 'it has no plots'}). "
            "Import the file that CoSER's extraction wrote last (final/<book>.json), or leave this book out."
        )
    characters = _characters(scenes, profiles, names, reader, profiles_as_initial)
    if profiles_as_initial and "profile_as_initial" not in reader.tallies("added"):
        raise DataError(
            f"{path}: it has no profile under 'character_datasets' for any character of its scenes. Import "
            "CoSER's final/<book>.json, which has them, or import without profiles as initial states."
        )
    timeline = Timeline(book=book, provides=list(PROVIDES), characters=characters, scenes=scenes)

    in_scene = {character.name for character in characters}
    for where, name in reader.plot_characters:
        if names.known(name) not in in_scene:
            reader.count("plot_character_in_no_scene", where, name)
    interactions = [interaction for scene in scenes for interaction in scene.interactions]
    report = ImportReport(
        source=_printable(path.name),
        book=book,
        provides=PROVIDES,
        not_provided=NOT_PROVIDED,
        read=dict(reader.read),
        written={
            "scenes": len(scenes),
            "interactions": len(interactions),
            "interactions of Environment": sum(i.actors == [ENVIRONMENT] for i in interactions),
            "interactions of groups": sum(len(i.actors) > 1 for i in interactions),
            "characters": len(characters),
            "places in casts": sum(len(scene.cast) for scene in scenes),
            "motivations": sum(len(scene.motivations) for scene in scenes),
        },
        set_aside=reader.tallies("set_aside"),
        changed=reader.tallies("changed"),
        added=reader.tallies("added"),
        noted=reader.tallies("noted"),
        fields={name: reader.fields[name].frozen() for name in FIELDS if name in reader.fields},
        keys_not_read=tuple(sorted(reader.keys_not_read)),
    )
    return ImportedBook(timeline, report)


# Reading the file.


def _load(path: Path) -> dict[str, Any]:
    """Return the file's JSON object, which has a list `plots`."""
    way_out = "Give a book file that CoSER's extraction wrote (final/<book>.json, with a list 'plots')"
    if path.is_dir():
        raise DataError(f"{path}: a folder, where one book's file is read. Give the *.json files in it.")
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file. {way_out}.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: it cannot be read ({error}). Fetch it again.") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8. {way_out}, in UTF-8.") from error
    start = text.lstrip()[:200]
    if not start:
        raise DataError(f"{path}: it is empty. {way_out}; fetch it again.")
    if start.startswith("<"):
        raise DataError(
            f"{path}: it is an HTML or XML page ({_excerpt(start)}), perhaps an error page saved in place of "
            f"the file. {way_out}; fetch it again."
        )
    if start.startswith("version https://git-lfs"):
        raise DataError(f"{path}: it is a Git LFS pointer, not the file itself. Run `git lfs pull`.")
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}:{error.lineno}: it is not JSON ({error.msg}, column {error.colno}). {way_out}."
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: it cannot be read as JSON ({error}). {way_out}.") from error

    if isinstance(data, list):
        raise DataError(
            f"{path}: a list of {len(data)}, where a book is an object. CoSER's training rows and its test "
            f"set are such lists, and hold no whole book. {way_out}."
        )
    if not isinstance(data, dict):
        raise DataError(f"{path}: a bare {type(data).__name__}, where a book is an object. {way_out}.")
    if "schema_version" in data and "scenes" in data:
        raise DataError(f"{path}: it is a timeline already. Use it as it is.")
    if not isinstance(data.get("plots"), list):
        keys = ", ".join(repr(_printable(key)) for key in list(data)[:8]) or "none"
        wrong = "'plots' is not a list" if "plots" in data else "it has no 'plots'"
        raise DataError(f"{path}: {wrong}, so it is no CoSER book (keys: {keys}). {way_out}.")
    return data


def _book(path: Path, book_id: str | None, title: str | None, author: str | None) -> Book:
    """Return what the book is called, from the options, then from the file's name."""
    stem = re.sub(r"\.json(\.gz)?$|\.gz$", "", _one_line(_printable(path.name)), flags=re.IGNORECASE)
    stem = re.sub(r"^(final|extracted)_(?=.)", "", stem)
    if book_id is None:
        plain = unicodedata.normalize("NFKD", stem).encode("ascii", "ignore").decode()
        book_id = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
        if not book_id:
            raise DataError(
                f"{path}: no book id of [a-z0-9-] can be made from the file's name. Give one as book id."
            )
    elif not re.fullmatch(r"[a-z0-9-]+", book_id):
        raise ConfigError(f"book id {book_id!r}: it may hold only a-z, 0-9 and '-'. Give another.")
    return Book(
        book_id=book_id,
        title=_one_line(title or "") or stem,
        author=_one_line(author or "") or "Unknown",
    )


# What a conversation says, before names are settled.


@dataclass(frozen=True)
class _Member:
    where: str
    name: str
    motivation: str | None


@dataclass(frozen=True)
class _Turn:
    where: str
    speaker: str
    content: str


@dataclass(frozen=True)
class _Conversation:
    where: str
    chapter: str | None
    summary: str | None
    scenario: str | None
    members: list[_Member]
    turns: list[_Turn]


@dataclass
class _FieldCount:
    occurrences: int = 0
    empty: int = 0
    keys: Counter[str] = field(default_factory=Counter)

    def frozen(self) -> FieldUse:
        return FieldUse(self.occurrences, self.empty, dict(self.keys))


class _Reader:
    """Reads values out of the source, and keeps the account of what was met."""

    def __init__(self) -> None:
        self.read: Counter[str] = Counter(plots=0, conversations=0, messages=0)
        self.fields: dict[str, _FieldCount] = {}
        self.keys_not_read: set[str] = set()
        self.plot_characters: list[tuple[str, str]] = []
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = {}

    def count(self, reason: str, where: str, text: str = "", times: int = 1) -> None:
        self._counts[reason] += times
        examples = self._examples.setdefault(reason, [])
        if len(examples) < _MAX_EXAMPLES:
            examples.append(f"{where}: {_excerpt(text)}" if text else where)

    def tallies(self, kind: Kind) -> dict[str, Tally]:
        """Return what was counted of one kind, in the order of `REASONS`."""
        return {
            reason: Tally(what, self._counts[reason], tuple(self._examples[reason]))
            for reason, (of_kind, what) in REASONS.items()
            if of_kind == kind and self._counts[reason]
        }

    def objects(
        self, entries: object, where: str, known_keys: Iterable[str]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield a list's objects with their places; what is neither list nor object is counted."""
        if entries is None:
            return
        if not isinstance(entries, list):
            self.count("not_an_object", where, str(entries))
            return
        known = set(known_keys)
        for i, entry in enumerate(entries):
            place = f"{where}[{i}]"
            if isinstance(entry, dict):
                self.note_keys(entry, f"{where}[]", known)
                yield place, entry
            else:
                self.count("not_an_object", place, str(entry))

    def note_keys(self, entry: dict[str, Any], where: str, known: Iterable[str]) -> None:
        pattern = re.sub(r"\[\d+\]", "[]", where)
        for key in entry.keys() - set(known):
            if not _is_marked_key(key):
                self.keys_not_read.add(_printable(f"{pattern}.{key}" if pattern else key))

    def value(self, entry: dict[str, Any], name: str, where: str) -> tuple[Any, str | None]:
        """Return a field's value and the key it stood under: the first that holds something."""
        use = self.fields.setdefault(name, _FieldCount())
        use.occurrences += 1
        held = [key for key in FIELDS[name] if not _is_blank(entry.get(key))]
        if not held:
            use.empty += 1
            return None, None
        use.keys[held[0]] += 1
        for key in held[1:]:
            if entry[key] != entry[held[0]]:
                self.count("second_spelling", f"{where}.{key}", str(entry[key]))
        return entry[held[0]], held[0]

    def text(self, value: Any, where: str) -> str:
        """Return a value as a timeline may hold it; blank where it is absent or, counted, unfit."""
        if value is None:
            return ""
        if not isinstance(value, str):
            self.count("not_text", where, str(value))
            return ""
        value, broken = _SURROGATE.subn("\ufffd", value)
        if broken:
            self.count("lone_surrogate", where, value, times=broken)
        if "</think>" in value:
            self.count("think_close", where, value)
            return ""
        found = control_strings(value)
        if found:
            self.count("control_string", where, " ".join(found), times=len(found))
        return value.strip()

    def field_text(self, entry: dict[str, Any], name: str, where: str) -> str:
        value, key = self.value(entry, name, where)
        return self.text(value, f"{where}.{key}")

    def name(self, entry: dict[str, Any], field_name: str, where: str) -> str:
        text = self.field_text(entry, field_name, where)
        name = _one_line(text)
        if name != text:
            self.count("name_respelled", where, name)
        if _name_key(name) == _name_key(ENVIRONMENT):
            if name != ENVIRONMENT:
                self.count("name_variant", where, name)
            return ENVIRONMENT
        return name


@dataclass(frozen=True)
class _Profile:
    where: str
    name: str
    value: Any


def _read_profiles(source: dict[str, Any], reader: _Reader) -> list[_Profile]:
    """Return the whole-book profiles as they are, None where one is missing, by CoSER's own names."""
    reader.note_keys(source, "", ("plots", "character_datasets"))
    datasets = source.get("character_datasets")
    if datasets is None:
        return []
    if not isinstance(datasets, dict):
        reader.count("not_an_object", "character_datasets", str(datasets))
        return []
    profiles: list[_Profile] = []
    for key, entry in datasets.items():
        where = f"character_datasets[{json.dumps(_printable(key), ensure_ascii=False)}]"
        name = _one_line(_printable(key))
        if not isinstance(entry, dict):
            reader.count("not_an_object", where, str(entry))
        elif not name or name in (ENVIRONMENT, SCENE_END):
            reader.count("reserved_name", where, name)
        else:
            reader.note_keys(entry, "character_datasets{}", ("profile",))
            value, _ = reader.value(entry, "profile", where)
            profiles.append(_Profile(where, name, value))
    return profiles


def _read_conversations(plots: list[Any], reader: _Reader) -> Iterator[_Conversation]:
    """Yield the conversations in the book's order: by plot, then by their order in it."""
    plot_keys = ("summary", "chapter", "text", "key_characters", "conversation")
    for where, plot in reader.objects(plots, "plots", plot_keys):
        reader.read["plots"] += 1
        summary = reader.field_text(plot, "plot summary", where)
        if reader.value(plot, "plot text", where)[1]:
            reader.count("plot_text", f"{where}.text")
        chapter = _chapter(plot, where, reader)
        _read_plot_characters(plot, where, reader)

        in_plot = 0
        conversation_keys = ("scenario", "topic", "key_characters", "dialogues")
        for place, entry in reader.objects(
            plot.get("conversation"), f"{where}.conversation", conversation_keys
        ):
            in_plot += 1
            reader.read["conversations"] += 1
            topic, _ = reader.value(entry, "topic", place)
            if topic is not None:
                reader.count("topic", f"{place}.topic", str(topic))
            yield _Conversation(
                where=place,
                chapter=chapter or None,
                summary=summary or None,
                scenario=reader.field_text(entry, "scenario", place) or None,
                members=list(_read_members(entry, place, reader)),
                turns=list(_read_turns(entry, place, reader)),
            )
        if not in_plot:
            reader.count("plot_without_conversation", where, summary)


def _chapter(plot: dict[str, Any], where: str, reader: _Reader) -> str:
    """Return the plot's chapter; CoSER's extraction writes the word None where it found no chapter."""
    value = plot.get("chapter")
    if isinstance(value, str) and value.strip().casefold() in ("none", "null"):
        reader.count("chapter_says_none", f"{where}.chapter", value)
        plot = {**plot, "chapter": None}
    return _one_line(reader.field_text(plot, "plot chapter", where))


def _read_plot_characters(plot: dict[str, Any], where: str, reader: _Reader) -> None:
    """Count what a plot says of its characters: all of it was written with the plot's end in view."""
    known = ("name", "character", "description", "experience", "summary")
    for place, entry in reader.objects(plot.get("key_characters"), f"{where}.key_characters", known):
        name = reader.name(entry, "plot character's name", place)
        if name:
            reader.plot_characters.append((place, name))
        description, _ = reader.value(entry, "plot character's description", place)
        if description is not None:
            reader.count("plot_character_description", place, str(description))
        experience, _ = reader.value(entry, "plot character's experience", place)
        if experience is not None:
            reader.count("plot_character_experience", place, str(experience))


def _read_members(conversation: dict[str, Any], where: str, reader: _Reader) -> Iterator[_Member]:
    known = ("name", "character", "motivation", "thought")
    for place, entry in reader.objects(conversation.get("key_characters"), f"{where}.key_characters", known):
        name = reader.name(entry, "key character's name", place)
        motivation = reader.field_text(entry, "motivation", place)
        if not name:
            reader.count("unnamed_key_character", place, motivation)
        elif name in (ENVIRONMENT, SCENE_END):
            reader.count("reserved_name", place, name)
        else:
            if re.fullmatch(r"\[[^\[\]]*\]", motivation):
                reader.count("motivation_in_brackets", place, motivation)
            yield _Member(place, name, motivation or None)


def _read_turns(conversation: dict[str, Any], where: str, reader: _Reader) -> Iterator[_Turn]:
    known = ("character", "name", "message", "thought", "description")
    for place, entry in reader.objects(conversation.get("dialogues"), f"{where}.dialogues", known):
        reader.read["messages"] += 1
        speaker = reader.name(entry, "speaker", place)
        value, key = _message(entry, place, reader)
        content = reader.text(value, f"{place}.{key}")
        if key == "thought" and content and not re.search(r"[\[\]()]", content) and speaker != ENVIRONMENT:
            # The key says what the missing marks should: as speech, everyone in the scene would hear it.
            reader.count("message_marked_as_thought", place, content)
            content = f"[{content}]"
        if not content:
            # A text that was refused is counted already, under its own reason.
            if value is None:
                reader.count("empty_message", place, speaker)
        elif not speaker:
            reader.count("message_without_speaker", place, content)
        elif speaker == SCENE_END:
            reader.count("reserved_name", place, content)
        else:
            unclosed = unclosed_brackets(content)
            if unclosed:
                reader.count("unclosed_bracket", place, content[unclosed[0] :], times=len(unclosed))
            yield _Turn(place, speaker, content)


def _message(entry: dict[str, Any], where: str, reader: _Reader) -> tuple[Any, str | None]:
    """Return a message and its key; CoSER's model at times wrote `"[thought]": "speech"` as key and value."""
    value, key = reader.value(entry, "message", where)
    if key is not None:
        return value, key
    for name, rest in entry.items():
        if _is_marked_key(name) and isinstance(rest, str):
            use = reader.fields["message"]
            use.empty -= 1
            use.keys["[...]"] += 1
            reader.count("message_in_key", where, name)
            return f"{name} {rest.strip()}", "[...]"
    return None, None


def _is_blank(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _is_marked_key(key: str) -> bool:
    return key.startswith("[") and key.endswith("]")


# Names, casts and scenes.


class _Names:
    """The one spelling of each name: the first of the key characters', then the first met."""

    def __init__(self, key_characters: Iterable[str]) -> None:
        self._spelling: dict[str, str] = {}
        for name in key_characters:
            self._spelling.setdefault(_name_key(name), name)
        # A key character's name is one name, whatever it looks like ("Rosencrantz and Guildenstern").
        self._whole = frozenset(self._spelling)

    def known(self, name: str) -> str | None:
        return self._spelling.get(_name_key(name))

    def learn(self, name: str) -> str:
        """Return the known spelling of a name, which becomes known as it is if it is new."""
        return self._spelling.setdefault(_name_key(name), name)

    def settle(self, name: str, where: str, reader: _Reader) -> str:
        """Return the known spelling of a name; another one is counted."""
        known = self.learn(name)
        if known != name:
            reader.count("name_variant", where, name)
        return known

    def parts(self, name: str) -> list[str]:
        """Return the names that a joined name ("Iago and Othello") is made of; none for a single one."""
        if _name_key(name) in self._whole:
            return []
        parts = [part for part in map(str.strip, _JOINER.split(name)) if part]
        return parts if len(parts) > 1 else []


def _scene(index: int, conversation: _Conversation, names: _Names, reader: _Reader) -> Scene | None:
    """Return a conversation as a scene, or None, counted: it has no scenario, no message or no cast."""
    where = conversation.where
    if conversation.scenario is None:
        reader.count("conversation_without_scenario", where)
        for turn in conversation.turns:
            reader.count("message_without_scene", turn.where, turn.content)
        return None
    if not conversation.turns:
        reader.count("conversation_without_dialogue", where, conversation.scenario)
        return None

    cast: list[str] = []
    motivations: dict[str, str] = {}
    for member in conversation.members:
        name = names.settle(member.name, member.where, reader)
        if name in cast:
            reader.count("repeated_key_character", member.where, name)
        else:
            cast.append(name)
        if member.motivation is not None:
            motivations.setdefault(name, member.motivation)

    acting = _actors(conversation.turns, cast, names, reader)
    if not cast:
        reader.count("conversation_without_cast", where, conversation.scenario)
        for turn in conversation.turns:
            reader.count("message_without_scene", turn.where, turn.content)
        return None
    for name in cast:
        if name not in motivations:
            reader.count("no_motivation", where, name)
    return Scene(
        index=index,
        chapter=conversation.chapter,
        scenario=conversation.scenario,
        summary=conversation.summary,
        cast=cast,
        motivations=motivations,
        interactions=[
            SceneInteraction(actors=actors, content=turn.content)
            for actors, turn in zip(acting, conversation.turns, strict=True)
        ],
    )


def _actors(turns: list[_Turn], cast: list[str], names: _Names, reader: _Reader) -> list[list[str]]:
    """Return who acts in each turn, and add to `cast` whoever speaks without being in it.

    A joined name is a group only where each of its parts is in the scene, as a key character or as a
    speaker of its own; else it is one new name, as it stands.
    """
    speakers = list(dict.fromkeys(turn.speaker for turn in turns if turn.speaker != ENVIRONMENT))
    present = {*cast, *(names.learn(speaker) for speaker in speakers if not names.parts(speaker))}
    acting: list[list[str]] = []
    for turn in turns:
        members = {names.known(part) for part in names.parts(turn.speaker)}
        if turn.speaker == ENVIRONMENT:
            acting.append([ENVIRONMENT])
        elif members and members <= present:
            reader.count("group_speaker", turn.where, turn.speaker)
            acting.append([name for name in members if name is not None])
        else:
            name = names.settle(turn.speaker, turn.where, reader)
            if name not in cast:
                cast.append(name)
                reader.count("speaker_added_to_cast", turn.where, name)
            acting.append([name])
    return [actors if actors == [ENVIRONMENT] else sorted(actors, key=cast.index) for actors in acting]


def _characters(
    scenes: list[Scene], profiles: list[_Profile], names: _Names, reader: _Reader, profiles_as_initial: bool
) -> list[Character]:
    """Return everyone who is in a scene, by first appearance, with nothing known of them unless asked for."""
    in_scenes = list(dict.fromkeys(name for scene in scenes for name in scene.cast))
    initial: dict[str, CharacterState] = {}
    for profile in profiles:
        name = names.learn(profile.name)
        if profile.value is None:
            continue
        if not profiles_as_initial or name not in in_scenes or name in initial:
            reader.count("whole_book_profile", profile.where, str(profile.value))
            continue
        text = reader.text(profile.value, f"{profile.where}.profile")
        if text:
            initial[name] = CharacterState(profile=text)
            reader.count("profile_as_initial", profile.where, text)
    if profiles_as_initial:
        for name in in_scenes:
            if name not in initial:
                reader.count("no_profile", name)
    return [Character(name=name, initial=initial.get(name, CharacterState())) for name in in_scenes]


# Small words.


def _one_line(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def _name_key(name: str) -> str:
    return "".join(name.split()).casefold()


def _printable(text: str) -> str:
    return _SURROGATE.sub("\ufffd", text)


def _excerpt(text: str) -> str:
    text = " ".join(_printable(text).split())
    return text if len(text) <= _EXCERPT else text[: _EXCERPT - 3].rstrip() + "..."


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
