"""What a CoSER book file says, conversation by conversation, as it stands there; nothing vanishes uncounted."""

from __future__ import annotations

import gzip
import json
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_builders.importers.report import SURROGATE, Account, FieldUse, Kind, excerpt, printable
from ewtrain.content import control_strings, unclosed_brackets
from ewtrain.errors import DataError
from ewtrain.story import ENVIRONMENT, SCENE_END

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


@dataclass(frozen=True)
class Member:
    where: str
    name: str
    motivation: str | None


@dataclass(frozen=True)
class Turn:
    where: str
    speaker: str
    content: str


@dataclass(frozen=True)
class Conversation:
    where: str
    chapter: str | None
    summary: str | None
    scenario: str | None
    members: list[Member]
    turns: list[Turn]


class Reader(Account):
    """Reads values out of the source, and keeps the account of what was met."""

    def __init__(self) -> None:
        super().__init__(REASONS)
        self.read: Counter[str] = Counter(plots=0, conversations=0, messages=0)
        self.fields: dict[str, FieldUse] = {}
        self.keys_not_read: set[str] = set()
        self.plot_characters: list[tuple[str, str]] = []

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
                self.keys_not_read.add(printable(f"{pattern}.{key}" if pattern else key))

    def value(self, entry: dict[str, Any], name: str, where: str) -> tuple[Any, str | None]:
        """Return a field's value and the key it stood under: the first that holds something."""
        use = self.fields.setdefault(name, FieldUse(FIELDS[name][0]))
        use.occurrences += 1
        held = [key for key in FIELDS[name] if not _is_blank(entry.get(key))]
        if not held:
            use.empty += 1
            return None, None
        use.add(held[0])
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
        value, broken = SURROGATE.subn("\ufffd", value)
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
        name = one_line(text)
        if name != text:
            self.count("name_respelled", where, name)
        if name_key(name) == name_key(ENVIRONMENT):
            if name != ENVIRONMENT:
                self.count("name_variant", where, name)
            return ENVIRONMENT
        return name


def load_file(path: Path) -> dict[str, Any]:
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
            f"{path}: it is an HTML or XML page ({excerpt(start)}), perhaps an error page saved in place of "
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
        keys = ", ".join(repr(printable(key)) for key in list(data)[:8]) or "none"
        wrong = "'plots' is not a list" if "plots" in data else "it has no 'plots'"
        raise DataError(f"{path}: {wrong}, so it is no CoSER book (keys: {keys}). {way_out}.")
    return data


@dataclass(frozen=True)
class Profile:
    where: str
    name: str
    value: Any


def read_profiles(source: dict[str, Any], reader: Reader) -> list[Profile]:
    """Return the whole-book profiles as they are, None where one is missing, by CoSER's own names."""
    reader.note_keys(source, "", ("plots", "character_datasets"))
    datasets = source.get("character_datasets")
    if datasets is None:
        return []
    if not isinstance(datasets, dict):
        reader.count("not_an_object", "character_datasets", str(datasets))
        return []
    profiles: list[Profile] = []
    for key, entry in datasets.items():
        where = f"character_datasets[{json.dumps(printable(key), ensure_ascii=False)}]"
        name = one_line(printable(key))
        if not isinstance(entry, dict):
            reader.count("not_an_object", where, str(entry))
        elif not name or name in (ENVIRONMENT, SCENE_END):
            reader.count("reserved_name", where, name)
        else:
            reader.note_keys(entry, "character_datasets{}", _keys("profile"))
            value, _ = reader.value(entry, "profile", where)
            profiles.append(Profile(where, name, value))
    return profiles


def read_conversations(plots: list[Any], reader: Reader) -> Iterator[Conversation]:
    """Yield the conversations in the book's order: by plot, then by their order in it."""
    plot_keys = (*_keys("plot summary", "plot chapter", "plot text"), "key_characters", "conversation")
    for where, plot in reader.objects(plots, "plots", plot_keys):
        reader.read["plots"] += 1
        summary = reader.field_text(plot, "plot summary", where)
        if reader.value(plot, "plot text", where)[1]:
            reader.count("plot_text", f"{where}.text")
        chapter = _chapter(plot, where, reader)
        _read_plot_characters(plot, where, reader)

        in_plot = 0
        conversation_keys = (*_keys("scenario", "topic"), "key_characters", "dialogues")
        for place, entry in reader.objects(
            plot.get("conversation"), f"{where}.conversation", conversation_keys
        ):
            in_plot += 1
            reader.read["conversations"] += 1
            topic, _ = reader.value(entry, "topic", place)
            if topic is not None:
                reader.count("topic", f"{place}.topic", str(topic))
            yield Conversation(
                where=place,
                chapter=chapter or None,
                summary=summary or None,
                scenario=reader.field_text(entry, "scenario", place) or None,
                members=list(_read_members(entry, place, reader)),
                turns=list(_read_turns(entry, place, reader)),
            )
        if not in_plot:
            reader.count("plot_without_conversation", where, summary)


def _chapter(plot: dict[str, Any], where: str, reader: Reader) -> str:
    """Return the plot's chapter; CoSER's extraction writes the word None where it found no chapter."""
    value = plot.get("chapter")
    if isinstance(value, str) and value.strip().casefold() in ("none", "null"):
        reader.count("chapter_says_none", f"{where}.chapter", value)
        plot = {**plot, "chapter": None}
    return one_line(reader.field_text(plot, "plot chapter", where))


def _read_plot_characters(plot: dict[str, Any], where: str, reader: Reader) -> None:
    """Count what a plot says of its characters: all of it was written with the plot's end in view."""
    aspects = {
        "plot_character_description": "plot character's description",
        "plot_character_experience": "plot character's experience",
    }
    known = _keys("plot character's name", *aspects.values())
    for place, entry in reader.objects(plot.get("key_characters"), f"{where}.key_characters", known):
        name = reader.name(entry, "plot character's name", place)
        if name:
            reader.plot_characters.append((place, name))
        for reason, aspect in aspects.items():
            told, _ = reader.value(entry, aspect, place)
            if told is not None:
                reader.count(reason, place, str(told))


def _read_members(conversation: dict[str, Any], where: str, reader: Reader) -> Iterator[Member]:
    known = _keys("key character's name", "motivation")
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
            yield Member(place, name, motivation or None)


def _read_turns(conversation: dict[str, Any], where: str, reader: Reader) -> Iterator[Turn]:
    known = _keys("speaker", "message")
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
            yield Turn(place, speaker, content)


def _message(entry: dict[str, Any], where: str, reader: Reader) -> tuple[Any, str | None]:
    """Return a message and its key; CoSER's model at times wrote `"[thought]": "speech"` as key and value."""
    value, key = reader.value(entry, "message", where)
    if key is not None:
        return value, key
    for name, rest in entry.items():
        if _is_marked_key(name) and isinstance(rest, str):
            use = reader.fields["message"]
            use.empty -= 1
            use.add("[...]")
            reader.count("message_in_key", where, name)
            return f"{name} {rest.strip()}", "[...]"
    return None, None


def _keys(*fields: str) -> list[str]:
    return [key for name in fields for key in FIELDS[name]]


def _is_blank(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _is_marked_key(key: str) -> bool:
    return key.startswith("[") and key.endswith("]")


def one_line(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def name_key(name: str) -> str:
    return "".join(name.split()).casefold()
