"""Which texts of a timeline stand in each row, against a reading of the contract of our own.

Nothing here uses the library's replay, visibility or prompts. Every text of a generated timeline holds a
mark found nowhere else (tests/stories.py), so a prompt is told by the marks in it, in order: one missing, one
too many, or two in the wrong order is a fault.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stories import MARK, marks, timelines
from test_rows import rows_of

from ewtrain.chat import Example, Message
from ewtrain.story import ENVIRONMENT, SCENE_END, Interaction, Timeline
from ewtrain.tasks import TASKS, Budget, Prompt, PromptTooLong

BEGINS, NO_PLACE, EMPTY = "(The story begins here.)", "(No particular place.)", "(Empty.)"
ENVIRONMENT_ROLE = "(The Environment has no profile, tracker or motivation.)"
INSTRUCTIONS, FRENCH = "# Instructions", "Write in French."
FIXED_LINES = "|".join(map(re.escape, [BEGINS, NO_PLACE, EMPTY, ENVIRONMENT_ROLE, INSTRUCTIONS, FRENCH]))
TOKEN = re.compile(f"{MARK.pattern}|^(?:{FIXED_LINES})$", re.MULTILINE)


def tokens(texts: Sequence[str]) -> list[str]:
    """Return the marks and the fixed lines in texts, in order."""
    return TOKEN.findall("\n".join(texts))


def texts_of(messages: list[Message]) -> list[str]:
    return [message["content"] for message in messages]


class Point:
    """A timeline read up to the interaction `i` of scene `t`; its characters are as at that scene's start."""

    def __init__(self, timeline: Timeline, t: int, i: int = 0) -> None:
        self.timeline = timeline
        self.world = timeline.initial_global_state or ""
        self.places = {place.name: place.initial for place in timeline.locations}
        self.profiles = {person.name: person.initial.profile for person in timeline.characters}
        self.trackers = {person.name: person.initial.hidden_tracker for person in timeline.characters}
        self.descriptions = {person.name: person.initial.short_description for person in timeline.characters}
        for scene in timeline.scenes[: t + 1]:
            for turn in scene.interactions if scene.index < t else scene.interactions[:i]:
                self.world = turn.global_state or self.world
                if scene.location and turn.location_state:
                    self.places[scene.location] = turn.location_state
            for name, update in scene.character_updates.items():
                if scene.index < t:
                    self.profiles[name] = update.profile or self.profiles[name]
                    self.trackers[name] = update.hidden_tracker
                    self.descriptions[name] = update.short_description

    def cast(self, names: Sequence[str], motivations: dict[str, str] | None = None) -> list[str]:
        return [
            text or ""
            for name in names
            for text in (self.descriptions[name], motivations[name] if motivations else "")
        ]

    def role(self, name: str) -> list[str]:
        return [self.profiles[name] or "", self.trackers[name] or EMPTY]

    def descriptions_of_places(self, names: Sequence[str]) -> list[str]:
        """Return what places look like now, on top; where their states do not say, what they are like."""
        standing = {place.name: place.description for place in self.timeline.locations}
        current = {name: state.description if state else "" for name, state in self.places.items()}
        return [current[name] or standing[name] for name in names]

    def place(self, name: str | None) -> str:
        state = self.places[name] if name else None
        return state.model_dump_json() if state else NO_PLACE


@dataclass
class Expected:
    """A row: the texts in its order, with interactions as their marks, and its last answer.

    `middle` stands between the interactions that the opening shows and those of the live turns.
    """

    before: list[str]
    prior: list[str]
    middle: list[str]
    live: list[str]
    answer: Any

    @property
    def most_omitted(self) -> int:
        """The newest interaction always stays."""
        return max(0, len(self.prior) + len(self.live) - 1)

    def tokens(self, omitted: int = 0) -> list[str]:
        shown = [*self.prior, *self.live][omitted:]
        in_opening = max(0, len(self.prior) - omitted)
        if omitted and not in_opening:
            in_opening = 1  # the turn at the gap moves into the story so far: the next one must see it
        return tokens([*self.before, *shown[:in_opening], *self.middle, *shown[in_opening:]])


def seen(turns: Sequence[Interaction], viewer: Sequence[str] | None = None) -> list[str]:
    """Return the marks of each interaction that an acting set perceives; the World Model (None) sees all."""
    views = []
    for turn in turns:
        found = marks(turn.content)
        if viewer is not None and not set(viewer) & set(turn.actors):
            found = [mark for mark in found if ":thought:" not in mark]
        views.append("".join(found))
    return [view for view in views if view]


def expected(timeline: Timeline, row: Example) -> Expected:
    instructions = [INSTRUCTIONS, FRENCH] if timeline.book.language == "fr" else [INSTRUCTIONS]
    assert row.scene is not None
    if row.task in ("scene_cast", "location_scenario", "motivation_update"):
        return expected_plan(timeline, row.task, row.scene, row.actors, instructions)
    scene = timeline.scenes[row.scene]
    turns = scene.interactions
    if row.task == "character_update":
        (name,) = row.actors or []
        update = scene.character_updates[name]
        answer = {
            "hidden_tracker": update.hidden_tracker,
            "profile_updated": update.profile is not None,
            "updated_profile": update.profile,
            "short_description": update.short_description,
        }
        role = [*Point(timeline, row.scene).role(name), scene.motivations[name]]
        return Expected([scene.scenario, *instructions, *role], seen(turns, [name]), [], [], answer)

    starts = [0, *(i + 1 for i, turn in enumerate(turns) if turn.global_state or turn.location_state)]
    start = starts[row.segment or 0]
    ends_scene = start == starts[-1]
    end = len(turns) if ends_scene else starts[starts.index(start) + 1]
    point = Point(timeline, row.scene, start)
    motivations = None if row.task == "interaction_gen" else scene.motivations
    stage = [point.world, scene.scenario, *point.cast(scene.cast, motivations), point.place(scene.location)]
    if row.task == "next_character":
        decided = [*(turn.actors for turn in turns), [SCENE_END]]
        last = end if ends_scene else end - 1
        return Expected(stage, seen(turns[:start]), instructions, seen(turns[start:last]), decided[last])
    if row.task == "world_update":
        i = int(row.id.split(":")[3])
        turn = turns[i]
        state = turn.location_state
        answer = {
            "update_global": turn.global_state is not None,
            "global_state": turn.global_state,
            "update_location": state is not None,
            "location_state": json.loads(state.model_dump_json(exclude_none=True)) if state else None,
        }
        return Expected(stage, seen(turns[: i + 1]), instructions, [], answer)
    actors = row.actors or []
    last = max(i for i in range(start, end) if turns[i].actors == actors)
    role = [ENVIRONMENT_ROLE]
    if actors != [ENVIRONMENT]:
        role = [text for name in actors for text in (*point.role(name), scene.motivations[name])]
    before = [*stage, *instructions, *role]
    return Expected(
        before, seen(turns[:start], actors), [], seen(turns[start:last], actors), turns[last].content
    )


def expected_plan(
    timeline: Timeline, task: str, t: int, actors: Sequence[str] | None, instructions: list[str]
) -> Expected:
    """Return what a row between scenes shows; `t` is the scene that it plans."""
    point = Point(timeline, t)
    previous = timeline.scenes[t - 1] if t else timeline.previous_scene
    past = [previous.scenario] if previous else [BEGINS]
    turns = seen(previous.interactions if previous else [], actors)
    if task == "scene_cast":
        answer: dict[str, Any] = {"has_next_scene": t < len(timeline.scenes)}
        if t < len(timeline.scenes):
            answer["involved_characters"] = timeline.scenes[t].cast
        everyone = point.cast([person.name for person in timeline.characters])
        return Expected([point.world, *everyone, *past], turns, instructions, [], answer)
    scene = timeline.scenes[t]
    cast = point.cast(scene.cast)
    if task == "location_scenario":
        places = point.descriptions_of_places([place.name for place in timeline.locations])
        answer = {"location": scene.location, "scenario": scene.scenario}
        return Expected([point.world, *places, *past], turns, [*cast, *instructions], [], answer)
    (name,) = actors or []
    place = point.descriptions_of_places([scene.location]) if scene.location else [NO_PLACE]
    before = [point.world, scene.scenario, *cast, *place, *past]
    answer = {"motivation": scene.motivations[name]}
    return Expected(before, turns, [*instructions, *point.role(name)], [], answer)


@given(timelines(begins_later=True))
def test_a_prompt_shows_what_the_contract_says_in_its_order_and_nothing_else(timeline: Timeline) -> None:
    for row, _, _ in rows_of(timeline):
        want = expected(timeline, row)
        *prompt, answer = texts_of(row.messages)
        assert tokens(prompt) == want.tokens(), row.id
        said = answer if row.task == "interaction_gen" else json.loads(answer)
        assert said == want.answer, row.id


def fixed_blocks(messages: list[Message]) -> list[str]:
    """Return the blocks of the opening without those that hold interactions."""
    found = re.split(r"\n\n(?=# |===)", messages[1]["content"])
    histories = ("# Story so far", "# Previous scene", "===Segment Start===")
    return [block for block in found if not block.startswith(histories)]


@settings(max_examples=30)
@given(timelines(begins_later=True, max_scenes=3), st.integers(0, 5))
def test_fitting_omits_the_oldest_interactions_and_nothing_else(timeline: Timeline, oldest: int) -> None:
    """A prompt's length is the number of its marks, so that each budget says how many must go."""

    def length(messages: list[Message]) -> int:
        return len(tokens(texts_of(messages)))

    for row, inp, _ in rows_of(timeline):
        task, want = TASKS[row.task], expected(timeline, row)
        num_omitted = min(oldest, want.most_omitted)

        def fit(max_tokens: int, task: Any = task, inp: Any = inp, row: Example = row) -> Prompt:
            return task.render(inp, wording=row.wording or 0, budget=Budget(length, max_tokens))

        fitted = fit(len(want.tokens(num_omitted)))
        assert fitted.omitted == num_omitted, row.id
        assert tokens(texts_of(fitted.messages)) == want.tokens(num_omitted), row.id
        assert fixed_blocks(fitted.messages) == fixed_blocks(row.messages), row.id
        line = f"({num_omitted} earlier interactions omitted)"
        assert (line in fitted.messages[1]["content"].splitlines()) == (num_omitted > 0)
        with pytest.raises(PromptTooLong):
            fit(len(want.tokens(want.most_omitted)) - 1)
