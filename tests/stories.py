"""Generated timelines: every shape that the contract allows, small, with awkward names and contents."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from ewtrain.story import ENVIRONMENT, TASK_NAMES, Timeline
from ewtrain.timeline_file import check_timeline

NAMES = ["Ada", 'Ben "Red" Ox', "Cleo O'Dunn", "Дина", "林 晓", "Éloïse", "F{x} $y", "Gé\\n"]
PLACES = ["The quay", "L'école", "Tower «N»", "Cave"]
TEXTS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"], exclude_characters="<>"),
    min_size=1,
    max_size=12,
).filter(lambda text: text.strip())
THOUGHT = TEXTS.map(lambda text: f"[secret {text.replace(']', '').replace('[', '')}]")
SPEECH = TEXTS.map(lambda text: "says " + text.translate(str.maketrans("", "", '[]()"')))
ACTION = TEXTS.map(lambda text: f"(does {text.replace(')', '').replace('(', '')} [of it])")


def contents(*, thoughts: bool = True) -> st.SearchStrategy[str]:
    """Turns of interleaved parts, thought-only ones among them, over one line or several."""
    part = st.one_of(THOUGHT, SPEECH, ACTION) if thoughts else st.one_of(SPEECH, ACTION)
    return st.lists(part, min_size=1, max_size=3).flatmap(
        lambda parts: st.sampled_from([" ", "\n"]).map(lambda gap: gap.join(parts))
    )


@st.composite
def location_states(draw: st.DrawFn, version: int) -> dict[str, Any]:
    entities = [{"name": f"thing {i}", "state": f"state {version}"} for i in range(draw(st.integers(0, 2)))]
    description = draw(st.sampled_from(["", f"A place, version {version}."]))
    if draw(st.booleans()):
        return {"description": f"{description} v{version}", "important_entities": entities}
    parts = [
        {"name": f"part {i}", "description": f"part {version}", "important_entities": entities}
        for i in range(2)
    ]
    return {"description": f"{description} v{version}", "sub_locations": parts}


@st.composite
def timelines(
    draw: st.DrawFn,
    *,
    book_id: str = "book",
    min_scenes: int = 1,
    max_scenes: int = 4,
    max_turns: int = 6,
    provides: tuple[str, ...] = TASK_NAMES,
) -> Timeline:
    """A timeline that the checker finds no fault in; every state text is unique to where it was written."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    places = draw(st.lists(st.sampled_from(PLACES), max_size=2, unique=True))
    version = 0

    def fresh() -> int:
        nonlocal version
        version += 1
        return version

    scenes = []
    for t in range(draw(st.integers(min_scenes, max_scenes))):
        cast = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
        location = draw(st.sampled_from([None, *places]))
        interactions = []
        for i in range(draw(st.integers(0, max_turns))):
            everyone = st.lists(st.sampled_from(cast), min_size=1, unique=True)
            actors = draw(st.one_of(st.just([ENVIRONMENT]), everyone, everyone))
            thoughts = actors != [ENVIRONMENT]
            interaction: dict[str, Any] = {
                "actors": sorted(actors, key=cast.index) if thoughts else actors,
                "content": f"{t}.{i} {draw(contents(thoughts=thoughts))}".strip(),
            }
            if thoughts and draw(st.integers(0, 5)) == 0:
                interaction["content"] = draw(THOUGHT)
            if draw(st.integers(0, 4)) == 0:
                interaction["global_state"] = f"**Order** world {fresh()} of scene {t}"
            if location is not None and draw(st.integers(0, 4)) == 0:
                interaction["location_state"] = draw(location_states(fresh()))
            interactions.append(interaction)
        scenes.append(
            {
                "index": t,
                "location": location,
                "scenario": f"scenario of scene {t}",
                "cast": cast,
                "motivations": {name: f"motivation of {name} in scene {t}" for name in cast},
                "interactions": interactions,
                "character_updates": {
                    name: {
                        "hidden_tracker": draw(st.sampled_from([None, f"tracker of {name} after {t}"])),
                        "profile": draw(st.sampled_from([None, f"**Self** profile of {name} after {t}"])),
                        "short_description": f"description of {name} after {t}",
                    }
                    for name in cast
                },
            }
        )
    timeline = Timeline.model_validate(
        {
            "book": {
                "book_id": book_id,
                "title": "T",
                "author": "A",
                "language": draw(st.sampled_from(["en", "fr"])),
            },
            "provides": list(provides),
            "characters": [
                {
                    "name": name,
                    "initial": {
                        "profile": f"**Self** first profile of {name}",
                        "short_description": f"first description of {name}",
                    },
                }
                for name in names
            ],
            "locations": [
                {"name": place, "description": f"what {place} is", "initial": draw(location_states(fresh()))}
                for place in places
            ],
            "initial_global_state": f"**Order** world {fresh()} at the start",
            "scenes": scenes,
        }
    )
    assert check_timeline(timeline).faults == []
    return timeline
