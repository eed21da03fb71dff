"""A timeline's moments in story order, and at each one the steps that become rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ewtrain.replay import Segment, StoryState, finish_scene, play_segments
from ewtrain.story import Interaction, Scene, TaskName, Timeline
from ewtrain.tasks.answers import dumps


@dataclass(frozen=True)
class Boundary:
    """Just before a scene; `scene` None: the book is over."""

    state: StoryState
    index: int
    scene: Scene | None


@dataclass(frozen=True)
class InSegment:
    """A segment of a scene, `state` being what its decisions see."""

    state: StoryState
    scene: Scene
    segment: Segment

    @property
    def prior(self) -> list[Interaction]:
        return self.scene.turns[: self.segment.start]


@dataclass(frozen=True)
class SceneEnd:
    """Just after a scene's last interaction; the world is written, the characters are not yet."""

    state: StoryState
    scene: Scene


Moment = Boundary | InSegment | SceneEnd


def walk(timeline: Timeline, *, num_scenes: int, ends: bool) -> Iterator[Moment]:
    """Yield the moments of the first `num_scenes` scenes, and with `ends` that of the book's end.

    One pass, one state that is written to as the walk goes on: a moment is good until the next is asked for.
    """
    state = StoryState.at_start(timeline)
    for scene in timeline.scenes[:num_scenes]:
        yield Boundary(state, scene.index, scene)
        for segment in play_segments(state, scene):
            yield InSegment(state, scene, segment)
        yield SceneEnd(state, scene)
        finish_scene(state, scene)
    if ends:
        yield Boundary(state, len(timeline.scenes), None)


@dataclass(frozen=True)
class Step:
    """One row in the making. `make` returns its Input and Target, and None where the source lacks the Target.

    `place` is the row id's fourth part: a segment or a turn. Like its moment, a step is good until the walk
    goes on.
    """

    task: TaskName
    book_id: str
    scene: int
    make: Callable[[], tuple[Any, Any] | None]
    segment: int | None = None
    turn: int | None = None
    actors: list[str] | None = None
    changes_world: bool = False

    @property
    def id(self) -> str:
        """`book:scene:task:segment-or-turn:actors`, absent parts empty (contract section 3)."""
        place = self.turn if self.turn is not None else self.segment
        actors = dumps_compact(self.actors) if self.actors is not None else ""
        return f"{self.book_id}:{self.scene}:{self.task}:{'' if place is None else place}:{actors}"


def dumps_compact(names: list[str]) -> str:
    return "[" + ",".join(map(dumps, names)) + "]"


def rank(seed: int, *key: object) -> int:
    """Return the 64-bit rank that decides every draw: it depends on the seed and the key alone."""
    text = "\x1f".join(map(str, (seed, *key)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
