"""A segment -> one `world_update` row for each of its interactions; which ones are kept is drawn later."""

from __future__ import annotations

from collections.abc import Iterator

from data_builders.walk import InSegment, Step
from ewtrain.story import SceneInteraction
from ewtrain.tasks import WORLD_UPDATE
from ewtrain.tasks.world_update import WorldUpdateInput, WorldUpdateTarget


def steps(moment: InSegment) -> Iterator[Step]:
    scene, segment = moment.scene, moment.segment
    for i in range(segment.start, segment.end):
        interaction = scene.interactions[i]

        def make(
            i: int = i, interaction: SceneInteraction = interaction
        ) -> tuple[WorldUpdateInput, WorldUpdateTarget]:
            target = WorldUpdateTarget(
                global_state=interaction.global_state, location_state=interaction.location_state
            )
            return WORLD_UPDATE.observe(moment.state, scene.plan, scene.turns[: i + 1]), target

        yield Step(
            "world_update",
            moment.state.book.book_id,
            scene.index,
            make,
            segment=segment.index,
            turn=i,
            changes_world=interaction.changes_world,
        )
