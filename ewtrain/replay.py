"""A story's state at any point, its segments and its write-back, for builder and simulator alike.

States are immutable values; a change replaces one, so that a pass over a book copies nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ewtrain.story import (
    Book,
    CharacterState,
    CharacterUpdate,
    LocationState,
    Place,
    PreviousScene,
    Scene,
    TaskName,
    Timeline,
)


@dataclass
class StoryState:
    """The world and its characters at one point of a story, written to as the story goes on."""

    book: Book
    provides: frozenset[TaskName]
    global_state: str | None
    locations: dict[str, Place]
    characters: dict[str, CharacterState]
    previous_scene: PreviousScene | None = None

    @classmethod
    def at_start(cls, timeline: Timeline) -> StoryState:
        """Return the state before scene 0."""
        return cls(
            book=timeline.book,
            provides=frozenset(timeline.provides),
            global_state=timeline.initial_global_state,
            locations={
                place.name: Place(description=place.description, state=place.initial)
                for place in timeline.locations
            },
            characters={character.name: character.initial for character in timeline.characters},
            previous_scene=timeline.previous_scene,
        )

    def location_state(self, location: str | None) -> LocationState | None:
        return self.locations[location].state if location is not None else None

    def write_world(
        self, location: str | None, global_state: str | None, location_state: LocationState | None
    ) -> bool:
        """Write an interaction's new states (None: unchanged); True if anything differs from before."""
        changed = False
        if global_state is not None and global_state != self.global_state:
            self.global_state = global_state
            changed = True
        if (
            location_state is not None
            and location is not None
            and location_state != self.location_state(location)
        ):
            self.locations[location] = Place(
                description=self.locations[location].description, state=location_state
            )
            changed = True
        return changed

    def write_characters(self, updates: Mapping[str, CharacterUpdate]) -> None:
        """Write what a scene did to its cast: tracker and short description always, a profile if it changed."""
        for name, update in updates.items():
            self.characters[name] = CharacterState.model_construct(
                profile=update.profile if update.profile is not None else self.characters[name].profile,
                hidden_tracker=update.hidden_tracker,
                short_description=update.short_description,
            )


@dataclass(frozen=True)
class Segment:
    """A run of decisions under one world state: those about `scene.interactions[start:end]`.

    The last segment of a scene also holds the decision to end it.
    """

    index: int
    start: int
    end: int
    ends_scene: bool


def play_segments(state: StoryState, scene: Scene) -> Iterator[Segment]:
    """Yield a scene's segments in order, `state` being what each one's decisions see.

    Each one's change of the world is written to `state` once the next one is asked for.

    An interaction that changes the state closes its segment; the decision after it, even a lone scene
    end, opens the next one.
    """
    start = index = 0
    for i, interaction in enumerate(scene.interactions):
        if not interaction.changes_world:
            continue
        yield Segment(index, start, i + 1, False)
        state.write_world(scene.location, interaction.global_state, interaction.location_state)
        start, index = i + 1, index + 1
    yield Segment(index, start, len(scene.interactions), True)


def finish_scene(state: StoryState, scene: Scene) -> None:
    """Write a finished scene's character updates, and make it the previous scene."""
    state.write_characters(scene.character_updates)
    state.previous_scene = scene.as_previous()


def play_scene(state: StoryState, scene: Scene) -> None:
    """Bring `state` from just before a scene to just after it."""
    for _ in play_segments(state, scene):
        pass
    finish_scene(state, scene)


def state_before(timeline: Timeline, scene_index: int) -> StoryState:
    """Return the state before a scene; `len(timeline.scenes)` gives the state at the book's end."""
    state = StoryState.at_start(timeline)
    for scene in timeline.scenes[:scene_index]:
        play_scene(state, scene)
    return state


@dataclass
class StyleExamples:
    """Contents that each character spoke alone so far, thinned to at most `limit` evenly spaced ones."""

    limit: int = 10
    _spoken: dict[str, list[str]] = field(default_factory=dict)

    def add(self, scenes: Iterable[Scene]) -> None:
        for scene in scenes:
            for turn in scene.turns:
                if len(turn.actors) == 1:
                    self._spoken.setdefault(turn.actors[0], []).append(turn.content)

    def pick(self, name: str) -> list[str]:
        """Return at most `limit` contents in story order, first and last included."""
        spoken = self._spoken.get(name, [])
        if len(spoken) <= self.limit:
            return list(spoken)
        step = (len(spoken) - 1) / (self.limit - 1)
        return [spoken[round(i * step)] for i in range(self.limit)]
