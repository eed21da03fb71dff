"""A segment -> its one `next_character` row, all of its decisions as turns."""

from __future__ import annotations

from collections.abc import Iterator

from data_builders.walk import InSegment, Step
from ewtrain.story import SCENE_END
from ewtrain.tasks import NEXT_CHARACTER
from ewtrain.tasks.next_character import NextCharacterInput, NextCharacterTarget


def steps(moment: InSegment) -> Iterator[Step]:
    scene, segment = moment.scene, moment.segment

    def make() -> tuple[NextCharacterInput, NextCharacterTarget]:
        last = segment.end if segment.ends_scene else segment.end - 1
        actors = [SCENE_END] if segment.ends_scene else scene.turns[last].actors
        live = scene.turns[segment.start : last]
        inp = NEXT_CHARACTER.observe(moment.state, scene.plan, moment.prior, live)
        return inp, NextCharacterTarget(actors=actors)

    yield Step("next_character", moment.state.book.book_id, scene.index, make, segment=segment.index)
