"""A book as a timeline, and a snapshot of one (contract sections 1 and 4).

The models say what shape is right; what must hold between fields is checked in `timeline_check`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from functools import cached_property
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

ENVIRONMENT = "Environment"
SCENE_END = "<SCENE_END>"
RESERVED_NAMES = (ENVIRONMENT, SCENE_END)

TaskName = Literal[
    "scene_cast",
    "location_scenario",
    "motivation_update",
    "next_character",
    "interaction_gen",
    "world_update",
    "character_update",
]
TASK_NAMES: tuple[TaskName, ...] = get_args(TaskName)


def _strip(value: object) -> object:
    """Return a text without white space at its edges; a lone surrogate, which no file can hold, is refused."""
    if not isinstance(value, str):
        return value
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError("a text without lone surrogates is wanted: replace them") from None
    return value.strip()


# Never blank, and without white space at its edges, as no message of ours has any. By Python's own strip, as
# everywhere else: pydantic's leaves some control characters standing.
Text = Annotated[str, StringConstraints(min_length=1), BeforeValidator(_strip)]
BookId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]+$")]


class StoryModel(BaseModel):
    """Immutable, with unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Book(StoryModel):
    """What a book is called. `language` is BCP 47; `genre` is coarse, then fine."""

    book_id: BookId
    title: Text
    author: Text
    language: Text = "en"
    genre: list[Text] | None = None


class CharacterState(StoryModel):
    """What a character is at a point. None: the tracker is empty, or the source records no such thing."""

    profile: Text | None = None
    hidden_tracker: Text | None = None
    short_description: Text | None = None


class Character(StoryModel):
    name: Text
    aliases: list[Text] = []
    initial: CharacterState = CharacterState()


class Entity(StoryModel):
    """A thing worth tracking at a place; never a person."""

    name: Text
    state: Text


class SubLocation(StoryModel):
    name: Text
    description: Text
    important_entities: list[Entity]


class LocationState(StoryModel):
    """A place's physical state: flat (`important_entities`) or grouped (`sub_locations`), never both."""

    description: Annotated[str, BeforeValidator(_strip)]
    important_entities: list[Entity] | None = None
    sub_locations: list[SubLocation] | None = None

    @model_validator(mode="after")
    def _flat_or_grouped(self) -> LocationState:
        if (self.important_entities is None) == (self.sub_locations is None):
            raise ValueError("a location state has either important_entities or sub_locations")
        return self


def entity_faults(state: LocationState, people: Container[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (path, what is wrong, what would be right) for names that may not stand in a location state."""
    groups = [("", state.important_entities or [])]
    if state.sub_locations is not None:
        yield from _twice("sub_locations", [part.name for part in state.sub_locations])
        groups = [
            (f"sub_locations[{i}].", part.important_entities) for i, part in enumerate(state.sub_locations)
        ]
    for prefix, entities in groups:
        yield from _twice(f"{prefix}important_entities", [entity.name for entity in entities])
        for i, entity in enumerate(entities):
            if entity.name in people:
                path = f"{prefix}important_entities[{i}].name"
                yield path, f"{entity.name!r} is a character", "An entity is never a person: remove it"


def _twice(path: str, names: list[str]) -> Iterator[tuple[str, str, str]]:
    for i, name in enumerate(names):
        if name in names[:i]:
            yield f"{path}[{i}].name", f"{name!r} stands twice in one list", "Merge the two, or rename one"


class Location(StoryModel):
    name: Text
    aliases: list[Text] = []
    description: Text
    initial: LocationState | None = None


class Interaction(StoryModel):
    """One turn: who acts (cast names in cast order, or exactly `["Environment"]`), and what they do."""

    actors: Annotated[list[Text], Field(min_length=1)]
    content: Text


class SceneInteraction(Interaction):
    """An interaction as a timeline keeps it: with the complete new states, where it changed them."""

    global_state: Text | None = None
    location_state: LocationState | None = None

    @property
    def changes_world(self) -> bool:
        return self.global_state is not None or self.location_state is not None


class CharacterUpdate(StoryModel):
    """What a scene did to a character; `hidden_tracker` overwrites, `profile` is None when unchanged."""

    hidden_tracker: Text | None = None
    profile: Text | None = None
    short_description: Text


class ScenePlan(StoryModel):
    """A scene before it is played: where, with what setup, who, and why they come."""

    location: Text | None = None
    scenario: Text
    cast: Annotated[list[Text], Field(min_length=1)]
    motivations: dict[Text, Text] = {}


class PreviousScene(ScenePlan):
    """What came just before a point: enough to go on from, nothing of the states it left."""

    interactions: list[Interaction]


class Scene(StoryModel):
    index: Annotated[int, Field(ge=0, strict=True)]
    chapter: Text | None = None
    location: Text | None = None
    scenario: Text
    summary: Text | None = None
    cast: Annotated[list[Text], Field(min_length=1)]
    motivations: dict[Text, Text] = {}
    interactions: list[SceneInteraction]
    character_updates: dict[Text, CharacterUpdate] = {}

    @cached_property
    def turns(self) -> list[Interaction]:
        """The interactions as prompts show them: actors and content alone."""
        return [Interaction.model_construct(actors=i.actors, content=i.content) for i in self.interactions]

    @cached_property
    def plan(self) -> ScenePlan:
        return ScenePlan.model_construct(
            location=self.location, scenario=self.scenario, cast=self.cast, motivations=self.motivations
        )

    def as_previous(self) -> PreviousScene:
        return PreviousScene.model_construct(
            location=self.location,
            scenario=self.scenario,
            cast=self.cast,
            motivations=self.motivations,
            interactions=self.turns,
        )


class Timeline(StoryModel):
    """One extracted book, event-sourced: initial states once, then what each event changed."""

    schema_version: Literal[1] = 1
    book: Book
    provides: list[TaskName] = list(TASK_NAMES)
    characters: list[Character]
    locations: list[Location] = []
    initial_global_state: Text | None = None
    previous_scene: PreviousScene | None = None
    scenes: Annotated[list[Scene], Field(min_length=1)]


class Place(StoryModel):
    """A location at a point: its standing description and its current physical state."""

    description: Text
    state: LocationState | None = None


class Snapshot(StoryModel):
    """A story at the end of a scene, from which a simulation starts (contract section 4)."""

    snapshot_id: str
    book: Book
    kind: Literal["id", "ood"]
    after_scene: Annotated[int, Field(ge=-1)]
    global_state: Text | None
    locations: dict[Text, Place]
    characters: dict[Text, CharacterState]
    previous_scene: PreviousScene | None
    style_examples: dict[Text, list[Text]]
