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

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from data_builders.importers.coser_file import (
    FIELDS,
    Conversation,
    Profile,
    Reader,
    Turn,
    load_file,
    name_key,
    one_line,
    read_conversations,
    read_profiles,
)
from data_builders.importers.report import ImportedBook, ImportReport, printable
from ewtrain.errors import ConfigError, DataError
from ewtrain.story import (
    ENVIRONMENT,
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

_SPOILERS = ("initial profiles are spoilers: they were written from the whole book",)
_JOINER = re.compile(r",\s*(?:and\s+)?|\s+and\s+|\s*&\s*", re.IGNORECASE)


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
    source = load_file(path)
    book = _book(path, book_id, title, author)
    reader = Reader()

    profiles = read_profiles(source, reader)
    conversations = list(read_conversations(source["plots"], reader))
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
        source=printable(path.name),
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
        fields={name: reader.fields[name] for name in FIELDS if name in reader.fields},
        keys_not_read=tuple(sorted(reader.keys_not_read)),
        cautions=_SPOILERS if profiles_as_initial else (),
    )
    return ImportedBook(timeline, report)


def _book(path: Path, book_id: str | None, title: str | None, author: str | None) -> Book:
    """Return what the book is called, from the options, then from the file's name."""
    stem = re.sub(r"\.json(\.gz)?$|\.gz$", "", one_line(printable(path.name)), flags=re.IGNORECASE)
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
        title=one_line(title or "") or stem,
        author=one_line(author or "") or "Unknown",
    )


class _Names:
    """The one spelling of each name: the first of the key characters', then the first met."""

    def __init__(self, key_characters: Iterable[str]) -> None:
        self._spelling: dict[str, str] = {}
        for name in key_characters:
            self._spelling.setdefault(name_key(name), name)
        # A key character's name is one name, whatever it looks like ("Rosencrantz and Guildenstern").
        self._whole = frozenset(self._spelling)

    def known(self, name: str) -> str | None:
        return self._spelling.get(name_key(name))

    def learn(self, name: str) -> str:
        """Return the known spelling of a name, which becomes known as it is if it is new."""
        return self._spelling.setdefault(name_key(name), name)

    def settle(self, name: str, where: str, reader: Reader) -> str:
        """Return the known spelling of a name; another one is counted."""
        known = self.learn(name)
        if known != name:
            reader.count("name_variant", where, name)
        return known

    def parts(self, name: str) -> list[str]:
        """Return the names that a joined name ("Iago and Othello") is made of; none for a single one."""
        if name_key(name) in self._whole:
            return []
        parts = [part for part in map(str.strip, _JOINER.split(name)) if part]
        return parts if len(parts) > 1 else []


def _scene(index: int, conversation: Conversation, names: _Names, reader: Reader) -> Scene | None:
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


def _actors(turns: list[Turn], cast: list[str], names: _Names, reader: Reader) -> list[list[str]]:
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
    scenes: list[Scene], profiles: list[Profile], names: _Names, reader: Reader, profiles_as_initial: bool
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
