"""A scene's end -> one `character_update` row for each member of its cast."""

from __future__ import annotations

from collections.abc import Iterator

from data_builders.walk import SceneEnd, Step
from ewtrain.story import CharacterUpdate
from ewtrain.tasks import CHARACTER_UPDATE
from ewtrain.tasks.character_update import CharacterUpdateInput


def steps(moment: SceneEnd) -> Iterator[Step]:
    scene = moment.scene
    for name in scene.cast:

        def make(name: str = name) -> tuple[CharacterUpdateInput, CharacterUpdate] | None:
            if name not in scene.character_updates:
                return None
            inp = CHARACTER_UPDATE.observe(moment.state, scene.plan, name, scene.turns)
            return inp, scene.character_updates[name]

        yield Step("character_update", moment.state.book.book_id, scene.index, make, actors=[name])
