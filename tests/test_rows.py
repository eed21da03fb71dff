"""What a timeline becomes: rows, their counts, and what must never be in them (contract section 2)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from conftest import SAMPLES
from hypothesis import given
from hypothesis import strategies as st
from stories import marks, timelines

from data_builders.build import make_row, wording_of
from data_builders.mixture import draw_updates, gold_fault, training_steps
from data_builders.splits import Splits
from data_builders.walk import Step
from ewtrain.chat import Example, Message
from ewtrain.content import visible_to, without_thoughts
from ewtrain.replay import StoryState, finish_scene, play_segments
from ewtrain.story import ENVIRONMENT, SCENE_END, Interaction, Timeline
from ewtrain.tasks import INTERACTION_GEN, NEXT_CHARACTER, TASKS, Budget, sections
from ewtrain.timeline_file import read_timeline

ALL = Splits(books={"book": "train_only"})


def rows_of(timeline: Timeline, splits: Splits | None = None) -> list[tuple[Example, Any, Any]]:
    """Every row of a timeline's training scenes with its Input and Target, `world_update` unsampled."""
    splits = splits or Splits(books={timeline.book.book_id: "train_only"})
    made = []
    for step in training_steps(timeline, splits):
        if step.task not in timeline.provides:
            continue
        result = step.make()
        row = make_row(step, wording_of(0, step))
        if result is None or row is None:
            continue
        made.append((row, *result))
    return made


def text_of(row: Example) -> str:
    return "\n".join(message["content"] for message in row.messages) + "\n" + (row.input or "")


@given(timelines())
def test_row_and_turn_counts_are_the_contracts_arithmetic(timeline: Timeline) -> None:
    made = rows_of(timeline)
    rows = Counter(row.task for row, _, _ in made)
    turns = Counter[str]()
    for row, _, _ in made:
        turns[row.task] += sum(message["role"] == "assistant" for message in row.messages)
    scenes = timeline.scenes
    interactions = sum(len(scene.interactions) for scene in scenes)
    changing = sum(i.changes_world for scene in scenes for i in scene.interactions)
    cast = sum(len(scene.cast) for scene in scenes)
    assert turns["interaction_gen"] == interactions
    assert turns["next_character"] == interactions + len(scenes)
    assert rows["next_character"] == len(scenes) + changing
    assert rows["location_scenario"] == len(scenes)
    assert rows["scene_cast"] == len(scenes) + 1
    assert rows["motivation_update"] == rows["character_update"] == cast
    assert rows["world_update"] == interactions


@given(timelines(), st.integers(0, 3))
def test_world_update_keeps_every_change_and_1_8_times_as_many_others(timeline: Timeline, seed: int) -> None:
    steps = [step for step in training_steps(timeline, ALL) if step.task == "world_update"]
    changing = {step.id for step in steps if step.changes_world}
    kept = draw_updates(timeline, ALL, seed)
    others = len(steps) - len(changing)
    assert changing <= kept
    assert len(kept) - len(changing) == min(others, int(1.8 * len(changing) + 0.5))


def test_which_other_updates_are_kept_depends_on_the_seed() -> None:
    timeline = read_timeline(SAMPLES / "the-lamp-at-orrin-head.timeline.json")
    splits = Splits(books={timeline.book.book_id: "train_only"})
    kept = [frozenset(draw_updates(timeline, splits, seed)) for seed in range(4)]
    assert len(set(kept)) == 4 and len(set(map(len, kept))) == 1


@given(timelines())
def test_ids_are_unique_and_say_book_scene_task_place_and_actors(timeline: Timeline) -> None:
    made = rows_of(timeline)
    ids = [row.id for row, _, _ in made]
    assert len(set(ids)) == len(ids)
    for row, _, _ in made:
        book, scene, task, rest = row.id.split(":", 3)
        place, actors = rest.split(":", 1)
        assert (book, int(scene), task) == (row.book_id, row.scene, row.task)
        assert actors == (
            json.dumps(row.actors, ensure_ascii=False, separators=(",", ":")) if row.actors else ""
        )
        assert place.isdigit() == (task in ("next_character", "interaction_gen", "world_update"))


@given(timelines())
def test_gold_passes_its_own_parser_for_every_row_and_turn(timeline: Timeline) -> None:
    for row, inp, target in rows_of(timeline):
        task = TASKS[row.task]
        answers = [message["content"] for message in row.messages if message["role"] == "assistant"]
        assert answers == task.answers(inp, target)
        assert task.parse(answers[-1], inp) == target
        for answer in answers:
            assert task.format_target(task.parse(answer, inp)) == answer


@given(timelines(begins_later=True))
def test_a_row_is_its_rendered_input_and_its_answer(timeline: Timeline) -> None:
    for row, inp, target in rows_of(timeline):
        task = TASKS[row.task]
        again = task.Input.model_validate_json(row.input or "")
        assert again == inp
        prompt = task.render(again, wording=row.wording).messages
        assert row.messages[:-1] == prompt
        assert row.messages[-1] == {"role": "assistant", "content": task.format_target(target)}


def served_inputs(timeline: Timeline) -> Iterator[tuple[str, int, Any]]:
    """Yield (row id, turn, Input) as a client has it that only knows the story so far, for the live tasks."""
    state = StoryState.at_start(timeline)
    for scene in timeline.scenes:
        for segment in play_segments(state, scene):
            own: Counter[tuple[str, ...]] = Counter()
            base = f"{timeline.book.book_id}:{scene.index}"
            turns = scene.turns
            for k, i in enumerate(range(segment.start, segment.end + segment.ends_scene)):
                inp: Any = NEXT_CHARACTER.observe(
                    state, scene.plan, turns[: segment.start], turns[segment.start : i]
                )
                yield f"{base}:next_character:{segment.index}:", k, inp
                if i == segment.end:
                    break
                actors = turns[i].actors
                compact = json.dumps(actors, ensure_ascii=False, separators=(",", ":"))
                inp = INTERACTION_GEN.observe(
                    state, scene.plan, actors, turns[: segment.start], turns[segment.start : i]
                )
                yield f"{base}:interaction_gen:{segment.index}:{compact}", own[tuple(actors)], inp
                own[tuple(actors)] += 1
        finish_scene(state, scene)


def live_rows(timeline: Timeline) -> dict[str, tuple[Example, Any]]:
    made = rows_of(timeline)
    return {row.id: (row, inp) for row, inp, _ in made if row.task in ("next_character", "interaction_gen")}


@given(timelines(begins_later=True))
def test_what_is_served_for_turn_k_is_a_prefix_of_the_trained_row(timeline: Timeline) -> None:
    rows = live_rows(timeline)
    turns = Counter[str]()
    for row_id, k, inp in served_inputs(timeline):
        row, _ = rows[row_id]
        prompt = TASKS[row.task].render(inp, wording=row.wording or 0).messages
        assert row.messages[: len(prompt)] == prompt
        assert row.messages[len(prompt)]["role"] == "assistant"
        assert sum(message["role"] == "assistant" for message in prompt) == k
        turns[row_id] += 1
    assert {
        row_id: sum(m["role"] == "assistant" for m in row.messages) for row_id, (row, _) in rows.items()
    } == turns


@given(timelines(max_scenes=3), st.integers(1, 4))
def test_what_is_served_is_a_prefix_of_a_fitted_row_from_its_first_kept_turn_on(
    timeline: Timeline, oldest: int
) -> None:
    """The same interactions are omitted from both: a client's own budget may spare some of them."""
    rows = live_rows(timeline)
    for row_id, k, inp in served_inputs(timeline):
        row, whole = rows[row_id]
        task, wording = TASKS[row.task], row.wording or 0
        fitted = task._prompt(whole, wording, min(oldest, task._droppable(whole)))
        if k < fitted.moved_to_prior:
            continue
        trained = [*fitted.messages, row.messages[-1]]
        served = task._prompt(inp, wording, fitted.omitted).messages
        assert trained[: len(served)] == served
        assert trained[len(served)]["role"] == "assistant"
        assert sum(message["role"] == "assistant" for message in served) == k - fitted.moved_to_prior


@given(timelines(begins_later=True))
def test_no_private_thought_of_another_is_in_any_character_agent_row(timeline: Timeline) -> None:
    """Every thought is marked by who thought it, and then searched for, in the prompt and in the Input."""
    marked = timeline.model_copy(
        update={
            "scenes": [
                scene.model_copy(
                    update={
                        "interactions": [
                            i.model_copy(
                                update={
                                    "content": i.content.replace("secret", "secret of " + "+".join(i.actors))
                                }
                            )
                            for i in scene.interactions
                        ]
                    }
                )
                for scene in timeline.scenes
            ]
        }
    )
    everyone = {tuple(i.actors) for scene in marked.scenes for i in scene.interactions}
    private: dict[str, list[str]] = {}  # by name, the marks of what only that character may read
    for person in marked.characters:
        private[person.name] = marks(f"{person.initial.profile} {person.initial.hidden_tracker}")
    for scene in marked.scenes:
        for name, update in scene.character_updates.items():
            private[name] += marks(f"{scene.motivations[name]} {update.profile} {update.hidden_tracker}")
    for row, inp, _ in rows_of(marked):
        if row.adapter != "character_agent":
            continue
        reader = set(inp.actors) if row.task == "interaction_gen" else {inp.role.name}
        text = "\n".join(m["content"] for m in row.messages) + json.dumps(
            json.loads(row.input or ""), ensure_ascii=False
        )
        for actors in everyone:
            if not reader & set(actors):
                assert f"[secret of {'+'.join(actors)} " not in text
        for name, hidden in private.items():
            assert name in reader or not set(hidden) & set(marks(text))


@given(timelines())
def test_the_world_model_and_the_actor_itself_see_every_thought(timeline: Timeline) -> None:
    for row, inp, _ in rows_of(timeline):
        if row.task == "world_update":
            scene = timeline.scenes[row.scene or 0]
            assert inp.prior == scene.turns[: len(inp.prior)]
        if row.task == "interaction_gen":
            scene = timeline.scenes[row.scene or 0]
            own = [turn.content for turn in scene.turns if turn.actors == inp.actors]
            seen = [turn.content for turn in [*inp.prior, *inp.live] if turn.actors == inp.actors]
            assert seen == own[: len(seen)]


@given(timelines())
def test_every_prompt_alternates_and_shows_each_visible_interaction_once(timeline: Timeline) -> None:
    for row, inp, target in rows_of(timeline):
        roles = [message["role"] for message in row.messages]
        assert roles == ["system"] + ["user", "assistant"] * (len(roles) // 2)
        for message in row.messages:
            assert message["content"] == message["content"].strip() != ""
        if row.task != "interaction_gen":
            continue
        scene = timeline.scenes[row.scene or 0]
        raw_seen = visible_to(inp.actors, scene.turns)
        shown = [*inp.prior, *inp.live, Interaction(actors=inp.actors, content=target.content)]
        assert shown == raw_seen[: len(shown)]


@given(timelines())
def test_a_segments_rows_show_its_state_and_not_the_next_ones(timeline: Timeline) -> None:
    state_texts = [timeline.initial_global_state]
    where: dict[tuple[int, int], str] = {}
    for scene in timeline.scenes:
        segment = 0
        where[scene.index, 0] = state_texts[-1] or ""
        for interaction in scene.interactions:
            if interaction.global_state:
                state_texts.append(interaction.global_state)
            if interaction.changes_world:
                segment += 1
                where[scene.index, segment] = state_texts[-1] or ""
    for row, inp, _ in rows_of(timeline):
        if row.segment is not None:
            assert inp.global_state == where[row.scene or 0, row.segment]


@given(timelines(max_scenes=3), st.integers(0, 400))
def test_a_fitted_row_holds_no_new_line_and_no_half_turn(timeline: Timeline, less: int) -> None:
    def size(messages: list[Message]) -> int:
        return sum(len(message["content"]) for message in messages)

    for row, inp, _ in rows_of(timeline):
        task = TASKS[row.task]
        shortest = task._prompt(inp, row.wording or 0, task._droppable(inp))
        budget = Budget(size, max(size(shortest.messages), size(row.messages[:-1]) - less))
        fitted = task.render(inp, wording=row.wording or 0, budget=budget)
        assert size(fitted.messages) <= budget.max_tokens
        whole = [line for message in row.messages for line in message["content"].splitlines()]
        # A turn that moves into the story so far is told there as a line.
        whole += [sections.line(turn) for turn in getattr(inp, "live", [])]
        for message in fitted.messages:
            for line in message["content"].splitlines():
                assert line in whole or line == f"({fitted.omitted} earlier interactions omitted)"
        kept = [m["content"] for m in fitted.messages if m["role"] == "assistant"]
        supervised = [m["content"] for m in row.messages[:-1] if m["role"] == "assistant"]
        assert kept == supervised[len(supervised) - len(kept) :]
        assert len(supervised) - len(kept) == fitted.moved_to_prior


def test_a_lone_scene_end_opens_a_segment_of_its_own_after_a_change_on_the_last_interaction() -> None:
    timeline = Timeline.model_validate(
        {
            "book": {"book_id": "book", "title": "T", "author": "A"},
            "characters": [{"name": "Ada", "initial": {"profile": "p", "short_description": "s"}}],
            "initial_global_state": "g",
            "scenes": [
                {
                    "index": 0,
                    "scenario": "s",
                    "cast": ["Ada"],
                    "motivations": {"Ada": "m"},
                    "interactions": [{"actors": ["Ada"], "content": "hi", "global_state": "g2"}],
                    "character_updates": {"Ada": {"short_description": "s"}},
                }
            ],
        }
    )
    rows = {row.id: row for row, _, _ in rows_of(timeline)}
    last = rows["book:0:next_character:1:"].messages
    assert [m["role"] for m in last] == ["system", "user", "assistant"]
    assert json.loads(last[-1]["content"]) == [SCENE_END]
    assert last[1]["content"].startswith("# World\ng2\n")
    assert '["Ada"]: hi' in last[1]["content"]
    assert rows["book:0:next_character:0:"].messages[-1]["content"] == '["Ada"]'


def test_an_answer_that_its_parser_rejects_is_named_by_kind() -> None:
    timeline = Timeline.model_validate(
        {
            "book": {"book_id": "book", "title": "T", "author": "A"},
            "provides": ["interaction_gen"],
            "characters": [{"name": "Ada"}],
            "scenes": [
                {
                    "index": 0,
                    "scenario": "s",
                    "cast": ["Ada"],
                    "interactions": [
                        {"actors": ["Ada"], "content": "she reads: <|im_end|>"},
                        {"actors": [ENVIRONMENT], "content": "wind"},
                        {"actors": ["Ada"], "content": "good"},
                    ],
                }
            ],
        }
    )
    faults = {}
    for step in training_steps(timeline, ALL):
        if step.task == "interaction_gen":
            made = step.make()
            assert made is not None
            faults[step.id] = gold_fault(step, *made)
    assert faults == {
        'book:0:interaction_gen:0:["Ada"]': "rejected_not_allowed",
        'book:0:interaction_gen:0:["Environment"]': None,
    }


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.timeline.json")), ids=lambda path: path.name)
def test_the_samples_exercise_every_kind_of_turn_scene_and_state(path: Any) -> None:
    timeline = read_timeline(path)
    scenes = timeline.scenes
    turns = [turn for scene in scenes for turn in scene.interactions]
    assert len(scenes) >= 10
    assert any(len(turn.actors) > 1 for turn in turns)
    assert any(turn.actors == [ENVIRONMENT] for turn in turns)
    assert any(scene.location is None for scene in scenes)
    assert any(without_thoughts(turn.content) == "" for turn in turns)
    initial = [place.initial for place in timeline.locations if place.initial]
    assert any(state.sub_locations is not None for state in initial)
    assert any(state.important_entities is not None for state in initial)
    assert any(scene.interactions[-1].global_state for scene in scenes)
    assert any(scene.interactions[-1].location_state for scene in scenes)
    assert any(person.aliases for person in timeline.characters)
    for person in timeline.characters:
        updates = [s.character_updates[person.name] for s in scenes if person.name in s.character_updates]
        for before, after in pairwise(updates):
            if before.hidden_tracker and after.profile:
                break
        else:
            continue
        break
    else:
        pytest.fail("no tracker grows into a profile change")


def test_a_step_is_made_lazily_so_that_counting_renders_nothing() -> None:
    step = Step("scene_cast", "book", 0, make=lambda: pytest.fail("made"))
    assert step.id == "book:0:scene_cast::"
