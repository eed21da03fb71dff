"""A scene boundary -> one `motivation_update` row for each member of the coming scene's cast."""

from __future__ import annotations

from collections.abc import Iterator

from data_builders.walk import Boundary, Step
from ewtrain.tasks import MOTIVATION_UPDATE
from ewtrain.tasks.motivation_update import MotivationUpdateInput, MotivationUpdateTarget


def steps(moment: Boundary) -> Iterator[Step]:
    scene = moment.scene
    if scene is None:
        return
    for name in scene.cast:

        def make(name: str = name) -> tuple[MotivationUpdateInput, MotivationUpdateTarget] | None:
            if name not in scene.motivations:
                return None
            target = MotivationUpdateTarget(motivation=scene.motivations[name])
            return MOTIVATION_UPDATE.observe(moment.state, scene.plan, name), target

        yield Step("motivation_update", moment.state.book.book_id, moment.index, make, actors=[name])
