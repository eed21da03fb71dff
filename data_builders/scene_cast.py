"""A scene boundary -> the `scene_cast` row of the scene it plans, or of the book's end."""

from __future__ import annotations

from collections.abc import Iterator

from data_builders.walk import Boundary, Step
from ewtrain.tasks import SCENE_CAST
from ewtrain.tasks.scene_cast import SceneCastInput, SceneCastTarget


def steps(moment: Boundary) -> Iterator[Step]:
    def make() -> tuple[SceneCastInput, SceneCastTarget]:
        if moment.scene is None:
            target = SceneCastTarget(has_next_scene=False)
        else:
            target = SceneCastTarget(has_next_scene=True, involved_characters=moment.scene.cast)
        return SCENE_CAST.observe(moment.state), target

    yield Step("scene_cast", moment.state.book.book_id, moment.index, make)
