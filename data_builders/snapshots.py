"""Snapshots to simulate from, taken at scenes that training never sees (contract section 4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from data_builders.splits import BookKind, test_scenes
from data_builders.walk import rank
from ewtrain.replay import StoryState, StyleExamples, play_scene
from ewtrain.story import TASK_NAMES, Snapshot, Timeline

MIN_INTERACTIONS = 5
MAX_SNAPSHOTS: dict[BookKind, int] = {"train_only": 0, "train_test": 5, "ood": 20}


def draw_points(timeline: Timeline, kind: BookKind, seed: int) -> list[int]:
    """Return the scenes at whose ends a book's snapshots are taken, in story order.

    A candidate has at least five interactions and is not the book's last scene; a source that does not
    provide every task gives none, since a simulation could not go on from it.
    """
    if set(timeline.provides) != set(TASK_NAMES):
        return []
    candidates = [
        t
        for t in test_scenes(kind, len(timeline.scenes))
        if len(timeline.scenes[t].interactions) >= MIN_INTERACTIONS
    ]
    candidates.sort(key=lambda t: rank(seed, "snapshot", timeline.book.book_id, t))
    return sorted(candidates[: MAX_SNAPSHOTS[kind]])


def take_snapshots(timeline: Timeline, kind: BookKind, seed: int) -> Iterator[Snapshot]:
    """Yield a book's snapshots in story order."""
    points = set(draw_points(timeline, kind, seed))
    if not points:
        return
    state, style = StoryState.at_start(timeline), StyleExamples()
    for scene in timeline.scenes[: max(points) + 1]:
        play_scene(state, scene)
        style.add([scene])
        if scene.index in points:
            yield freeze(state, style, scene.index, "ood" if kind == "ood" else "id")


def freeze(state: StoryState, style: StyleExamples, after_scene: int, kind: Literal["id", "ood"]) -> Snapshot:
    """Return a state as a snapshot; `after_scene` -1 is a book's beginning."""
    return Snapshot(
        snapshot_id=f"{state.book.book_id}-{after_scene}",
        book=state.book,
        kind=kind,
        after_scene=after_scene,
        global_state=state.global_state,
        locations=dict(state.locations),
        characters=dict(state.characters),
        previous_scene=state.previous_scene,
        style_examples={name: style.pick(name) for name in state.characters},
    )
