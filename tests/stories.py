"""Generated timelines: every shape that the contract allows, small, with awkward names and contents.

Every text holds a mark, `§scene:kind:number§`, that stands nowhere else in the timeline; `marks` finds them.
"""

from __future__ import annotations

import re
from typing import Any

from hypothesis import strategies as st

from ewtrain.story import ENVIRONMENT, TASK_NAMES, Timeline
from ewtrain.timeline_file import check_timeline

NAMES = ["Ada", 'Ben "Red" Ox', "Cleo O'Dunn", "Дина", "林 晓", "Éloïse", "F{x} $y", "Gé\\n"]
PLACES = ["The quay", "L'école", "Tower «N»", "Cave"]
TEXTS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"], exclude_characters="<>§"),
    min_size=1,
    max_size=12,
).filter(lambda text: text.strip())
# A turn's parts: what surrounds the mark and the text, and the characters that the text must not hold.
PARTS = {
    "thought": ("[secret {mark} {text}]", "[]"),
    "speech": ("says {mark} {text}", '[]()"'),
    "action": ("(does {mark} {text} [of it])", "()"),
    "sign": ("[a board reads {mark} {text}]", "[]"),
}
MARK = re.compile(r"§[^§]*§")


def marks(text: str) -> list[str]:
    """Return the marks in a text, in order: each tells which text of the timeline stands there."""
    return MARK.findall(text)


class _Marks:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, scene: int | str, kind: str) -> str:
        self.count += 1
        return f"§{scene}:{kind}:{self.count}§"


@st.composite
def contents(draw: st.DrawFn, mark: _Marks, scene: int | str, *, thoughts: bool) -> str:
    """A turn of interleaved parts, perhaps of thought alone, over one line or several.

    Without thoughts it is Environment's, whose square brackets are text like any other.
    """
    kinds = ["thought" if thoughts else "sign", "speech", "action"]
    parts = []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3)):
        form, barred = PARTS[kind]
        text = draw(TEXTS).translate(str.maketrans("", "", barred))
        parts.append(form.format(mark=mark(scene, kind), text=text))
    return draw(st.sampled_from([" ", "\n"])).join(parts)


@st.composite
def interactions(
    draw: st.DrawFn, mark: _Marks, scene: int | str, cast: list[str], low: int, high: int
) -> list[dict[str, Any]]:
    turns = []
    for _ in range(draw(st.integers(low, high))):
        everyone = st.lists(st.sampled_from(cast), min_size=1, unique=True)
        actors = draw(st.one_of(st.just([ENVIRONMENT]), everyone, everyone))
        thoughts = actors != [ENVIRONMENT]
        turns.append(
            {
                "actors": sorted(actors, key=cast.index) if thoughts else actors,
                "content": draw(contents(mark, scene, thoughts=thoughts)),
            }
        )
    return turns


@st.composite
def location_states(draw: st.DrawFn, mark: _Marks, scene: int | str) -> dict[str, Any]:
    """A state, flat or grouped; where its own description is empty, its entities tell it from others."""
    description = draw(st.sampled_from(["", "A place, {}."])).format(mark(scene, "place"))

    def entities(least: int) -> list[dict[str, str]]:
        return [
            {"name": f"thing {i} {mark(scene, 'entity')}", "state": f"state {mark(scene, 'entity-state')}"}
            for i in range(draw(st.integers(least, 2)))
        ]

    if draw(st.booleans()):
        return {"description": description, "important_entities": entities(0 if description else 1)}
    parts = [
        {
            "name": f"part {i} {mark(scene, 'part')}",
            "description": f"part {mark(scene, 'part-place')}",
            "important_entities": entities(0),
        }
        for i in range(2)
    ]
    return {"description": description, "sub_locations": parts}


@st.composite
def timelines(
    draw: st.DrawFn,
    *,
    book_id: str = "book",
    min_scenes: int = 1,
    max_scenes: int = 4,
    min_turns: int = 0,
    max_turns: int = 6,
    begins_later: bool = False,
    provides: tuple[str, ...] = TASK_NAMES,
) -> Timeline:
    """A timeline that the checker finds no fault in; every text is unique to where it was written.

    With `begins_later` some have a scene before scene 0, as a snapshot has.
    """
    mark = _Marks()
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    places = draw(st.lists(st.sampled_from(PLACES), max_size=2, unique=True))
    casts = st.lists(st.sampled_from(names), min_size=1, unique=True)

    def maybe(text: str) -> str | None:
        return draw(st.sampled_from([None, text]))

    def plan(scene: int | str) -> dict[str, Any]:
        cast = draw(casts)
        return {
            "location": draw(st.sampled_from([None, *places])),
            "scenario": f"scenario of scene {scene} {mark(scene, 'scenario')}",
            "cast": cast,
            "motivations": {name: f"motivation of {name} {mark(scene, 'motivation')}" for name in cast},
        }

    previous_scene = None
    if begins_later and draw(st.booleans()):
        previous_scene = plan("before")
        previous_scene["interactions"] = draw(interactions(mark, "before", previous_scene["cast"], 0, 3))
    characters = [
        {
            "name": name,
            "aliases": [f"alias {mark('start', 'alias')}"],
            "initial": {
                "profile": f"**Self** first profile of {name} {mark('start', 'profile')}",
                "hidden_tracker": maybe(f"first tracker of {name} {mark('start', 'tracker')}"),
                "short_description": f"first description of {name} {mark('start', 'description')}",
            },
        }
        for name in names
    ]
    locations = [
        {
            "name": place,
            "aliases": [f"alias {mark('start', 'alias')}"],
            "description": f"what {place} is {mark('start', 'standing-place')}",
            "initial": draw(location_states(mark, "start")),
        }
        for place in places
    ]
    initial_global_state = f"**Order** world at the start {mark('start', 'world')}"
    scenes = []
    for t in range(draw(st.integers(min_scenes, max_scenes))):
        scene = plan(t)
        turns = draw(interactions(mark, t, scene["cast"], min_turns, max_turns))
        for turn in turns:
            if draw(st.integers(0, 4)) == 0:
                turn["global_state"] = f"**Order** world of scene {t} {mark(t, 'world')}"
            if scene["location"] is not None and draw(st.integers(0, 4)) == 0:
                turn["location_state"] = draw(location_states(mark, t))
        scenes.append(
            {
                "index": t,
                "chapter": f"chapter {mark(t, 'chapter')}",
                **scene,
                "summary": f"summary of scene {t} {mark(t, 'summary')}",
                "interactions": turns,
                "character_updates": {
                    name: {
                        "hidden_tracker": maybe(f"tracker of {name} after {t} {mark(t, 'tracker')}"),
                        "profile": maybe(f"**Self** profile of {name} after {t} {mark(t, 'profile')}"),
                        "short_description": f"description of {name} after {t} {mark(t, 'description')}",
                    }
                    for name in scene["cast"]
                },
            }
        )
    timeline = Timeline.model_validate(
        {
            "book": {
                "book_id": book_id,
                "title": f"T {mark('start', 'title')}",
                "author": f"A {mark('start', 'author')}",
                "language": draw(st.sampled_from(["en", "fr"])),
            },
            "provides": list(provides),
            "characters": characters,
            "locations": locations,
            "initial_global_state": initial_global_state,
            "previous_scene": previous_scene,
            "scenes": scenes,
        }
    )
    assert check_timeline(timeline).faults == []
    found = marks(timeline.model_dump_json())
    assert len(found) == len(set(found))
    return timeline
