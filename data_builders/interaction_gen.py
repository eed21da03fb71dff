"""A segment -> one `interaction_gen` row for each actor set that acts in it, its turns in order."""

from __future__ import annotations

from collections.abc import Iterator

from data_builders.walk import InSegment, Step
from ewtrain.tasks import INTERACTION_GEN
from ewtrain.tasks.interaction_gen import InteractionGenInput, InteractionGenTarget


def steps(moment: InSegment) -> Iterator[Step]:
    scene, segment = moment.scene, moment.segment
    last_turn: dict[tuple[str, ...], int] = {}
    for i in range(segment.start, segment.end):
        last_turn[tuple(scene.turns[i].actors)] = i
    for actors, last in last_turn.items():

        def make(
            actors: tuple[str, ...] = actors, last: int = last
        ) -> tuple[InteractionGenInput, InteractionGenTarget]:
            live = scene.turns[segment.start : last]
            inp = INTERACTION_GEN.observe(moment.state, scene.plan, actors, moment.prior, live)
            return inp, InteractionGenTarget(content=scene.turns[last].content)

        yield Step(
            "interaction_gen",
            moment.state.book.book_id,
            scene.index,
            make,
            segment=segment.index,
            actors=list(actors),
        )
