"""The seven tasks: prompts, answers and their one definition (contract section 2)."""

from __future__ import annotations

import json
import os
import re
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import Any

import pytest
import xgrammar
from hypothesis import given
from hypothesis import strategies as st

from ewtrain.chat import Message
from ewtrain.story import ENVIRONMENT, SCENE_END, Interaction, LocationState
from ewtrain.tasks import (
    INTERACTION_GEN,
    NEXT_CHARACTER,
    TASKS,
    WORDINGS,
    Budget,
    ParseError,
    PromptTooLong,
    sections,
)
from ewtrain.tasks import base as task_base
from ewtrain.tasks.next_character import NextCharacterInput
from ewtrain.tasks.sections import CastMember, ScenePlace
from ewtrain.tasks.specimens import SPECIMENS, Specimen

GOLDEN = Path(__file__).parent / "golden"
PROMPTS = Path(task_base.__file__).parent / "prompts"
CASES = [
    pytest.param(name, specimen, id=f"{name}: {specimen.title}")
    for name, specimens in SPECIMENS.items()
    for specimen in specimens
]
SYSTEM = {
    a: (PROMPTS / f"system.{a}.md").read_text(encoding="utf-8").strip()
    for a in ("world_model", "character_agent")
}


def shown(messages: list[Message]) -> str:
    return "".join(f"<<{message['role']}>>\n{message['content']}\n" for message in messages)


def characters(messages: list[Message]) -> int:
    return sum(len(message["content"]) for message in messages)


# --- what a prompt looks like ----------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "specimen"), CASES)
def test_wording_0_and_the_answer_equal_the_golden_file(name: str, specimen: Specimen) -> None:
    """Set EWTRAIN_WRITE_GOLDEN=1 to write them anew after a change that is meant; every adapter is stale then."""
    task = TASKS[name]
    text = (
        shown(task.render(specimen.input).messages) + f"<<answer>>\n{task.format_target(specimen.target)}\n"
    )
    path = GOLDEN / f"{name}.{re.sub('[^a-z]+', '-', specimen.title.lower())}.txt"
    if os.environ.get("EWTRAIN_WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


def test_no_golden_file_outlives_its_specimen() -> None:
    wanted = {
        f"{n}.{re.sub('[^a-z]+', '-', s.title.lower())}.txt" for n, all_ in SPECIMENS.items() for s in all_
    }
    assert {path.name for path in GOLDEN.glob("*.txt")} == wanted


@pytest.mark.parametrize("wording", range(WORDINGS))
@pytest.mark.parametrize(("name", "specimen"), CASES)
def test_messages_alternate_and_none_is_empty_or_has_white_space_at_its_edges(
    name: str, specimen: Specimen, wording: int
) -> None:
    messages = TASKS[name].render(specimen.input, wording=wording).messages
    assert messages[0] == {"role": "system", "content": SYSTEM[TASKS[name].adapter]}
    assert [m["role"] for m in messages[1:]] == ["user", "assistant"] * ((len(messages) - 1) // 2) + ["user"]
    for message in messages:
        assert message["content"] and message["content"] == message["content"].strip()


ORDER = {
    "scene_cast": ["World", "Characters", "Previous scene", "Instructions"],
    "location_scenario": ["World", "Locations", "Previous scene", "Cast", "Instructions"],
    "motivation_update": [
        "World",
        "Next scenario",
        "Cast",
        "Next location",
        "Previous scene",
        "Instructions",
        "Your role",
    ],
    "next_character": ["World", "Scenario", "Cast", "Location", "Story so far", "Instructions"],
    "world_update": ["World", "Scenario", "Cast", "Location", "Story so far", "Instructions"],
    "interaction_gen": ["World", "Scenario", "Cast", "Location", "Instructions", "Your role", "Story so far"],
    "character_update": ["Scenario", "Instructions", "Your role", "Story so far"],
}


@pytest.mark.parametrize(("name", "specimen"), CASES)
def test_blocks_stand_in_the_contracts_order(name: str, specimen: Specimen) -> None:
    opening = TASKS[name].render(specimen.input).messages[1]["content"]
    assert re.findall(r"^# (.+)$", opening, re.MULTILINE) == ORDER[name]
    if name == "interaction_gen":
        after = opening.split("# Story so far\n")[1]
        assert f"\n\n{sections.SEGMENT_START}" in after


def test_neighbouring_prompts_of_a_scene_share_their_blocks_byte_for_byte() -> None:
    def before_cast(name: str) -> str:
        return TASKS[name].render(SPECIMENS[name][0].input).messages[1]["content"].split("# Cast")[0]

    assert before_cast("next_character") == before_cast("world_update") == before_cast("interaction_gen")
    next_, update = (
        TASKS[n].render(SPECIMENS[n][0].input).messages[1]["content"].split("# Story so far")[0]
        for n in ("next_character", "world_update")
    )
    assert next_ == update


def test_every_wording_is_a_file_of_its_own_and_names_its_placeholders() -> None:
    placeholders = {
        "motivation_update": {"character"},
        "character_update": {"character"},
        "interaction_gen": {"actor"},
        "interaction_gen_group": {"actor"},
        "next_character": {"allowed_names"},
    }
    files = {path.name.removesuffix(".md"): path.read_text(encoding="utf-8") for path in PROMPTS.glob("*.md")}
    wordings = {name: text for name, text in files.items() if not name.startswith("system.")}
    names = [*TASKS, "interaction_gen_group", "interaction_gen_environment"]
    assert sorted(wordings) == sorted(f"{name}.{i}" for name in names for i in range(WORDINGS))
    assert len(set(wordings.values())) == len(wordings)
    for name, text in wordings.items():
        assert set(Template(text).get_identifiers()) == placeholders.get(name.rpartition(".")[0], set()), name


def test_json_tasks_show_no_example_of_json_which_harms_constrained_decoding() -> None:
    for path in PROMPTS.glob("*.md"):
        text = path.read_text(encoding="utf-8").replace("$allowed_names", "")
        assert "{" not in text, path.name
        if not path.name.startswith("interaction_gen"):
            assert '["' not in text, path.name


def test_a_language_other_than_english_ends_the_instructions() -> None:
    french = TASKS["scene_cast"].render(SPECIMENS["scene_cast"][1].input).messages[1]["content"]
    assert french.endswith("\nWrite in French.")
    english = TASKS["scene_cast"].render(SPECIMENS["scene_cast"][0].input).messages[1]["content"]
    assert "Write in" not in english


def test_an_interaction_is_one_line_with_its_line_breaks_as_one_space() -> None:
    turn = Interaction(actors=['A "x"', "Дина"], content="one\n\n  two\r\nthree  four")
    assert sections.line(turn) == '["A \\"x\\"", "Дина"]: one two three  four'


def test_names_with_template_signs_are_written_as_they_are() -> None:
    inp = SPECIMENS["interaction_gen"][0].input.model_copy(update={"actors": ["$actor {x} \\n"], "live": []})
    assert "You are $actor {x} \\n." in INTERACTION_GEN.render(inp).messages[1]["content"]


# --- what an answer looks like ---------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "specimen"), CASES)
def test_gold_passes_its_own_parser_and_inputs_survive_json(name: str, specimen: Specimen) -> None:
    task = TASKS[name]
    assert task.parse(task.format_target(specimen.target), specimen.input) == specimen.target
    assert task.Input.model_validate_json(specimen.input.model_dump_json()) == specimen.input


class Constrained:
    """xgrammar's matcher over single bytes, in the compact mode that the server is started with."""

    def __init__(self) -> None:
        vocabulary = [bytes([i]) for i in range(256)] + [b"</s>"]
        self.compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[256]))

    def accepts(self, schema: dict[str, Any], text: str) -> bool:
        grammar = self.compiler.compile_json_schema(json.dumps(schema), any_whitespace=False)
        matcher = xgrammar.GrammarMatcher(grammar)
        return all(matcher.accept_token(byte) for byte in text.encode()) and matcher.accept_token(256)


CONSTRAINED = Constrained()


@pytest.mark.parametrize(("name", "specimen"), CASES)
def test_every_gold_answer_can_be_reached_under_constrained_decoding(name: str, specimen: Specimen) -> None:
    schema = TASKS[name].schema(specimen.input)
    if name == "interaction_gen":
        assert schema is None
        return
    gold = TASKS[name].format_target(specimen.target)
    assert CONSTRAINED.accepts(schema, gold)
    assert not CONSTRAINED.accepts(schema, gold[:-1] + " " + gold[-1])


@given(text=st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1).filter(str.strip))
def test_any_text_can_be_reached_and_comes_back_unchanged(text: str) -> None:
    task, specimen = TASKS["motivation_update"], SPECIMENS["motivation_update"][0]
    if "</think>" in text:
        return
    gold = task.format_target(specimen.target.model_copy(update={"motivation": text.strip()}))
    assert task.parse(gold, specimen.input).motivation == text.strip()
    assert CONSTRAINED.accepts(task.schema(specimen.input), gold)


def _wrong() -> list[Any]:
    text = '"x"'
    state = '{"description": "x", "important_entities": []}'
    cases = {
        "scene_cast": {
            "not_json": [
                "",
                "{",
                "Sure! {}",
                '{"has_next_scene": NaN}',
                '```json\n{"has_next_scene": false}\n```',
            ],
            "wrong_shape": [
                "[]",
                "{}",
                '{"has_next_scene": 1}',
                '{"has_next_scene": false, "involved_characters": []}',
                '{"has_next_scene": true, "involved_characters": "Tove"}',
                '{"has_next_scene": false, "has_next_scene": false}',
                '{"has_next_scene": false, "why": "x"}',
            ],
            "not_allowed": [
                '{"has_next_scene": true}',
                '{"has_next_scene": true, "involved_characters": []}',
                '{"has_next_scene": true, "involved_characters": ["Zed"]}',
                '{"has_next_scene": true, "involved_characters": ["Tove", "Tove"]}',
            ],
        },
        "location_scenario": {
            "wrong_shape": ['{"location": "The landing"}', '{"location": 3, "scenario": "x"}'],
            "not_allowed": [
                '{"location": "Mars", "scenario": "x"}',
                '{"location": "The landing", "scenario": null}',
                '{"location": null, "scenario": "a</think>b"}',
            ],
        },
        "motivation_update": {
            "not_json": ['{"motivation": ' + "1" * 5000 + "}"],
            "wrong_shape": ['{"motivation": ""}', '{"motivation": null}', '{"motivation": "a\\ud83d"}'],
        },
        "next_character": {
            "not_json": ["Tove"],
            "wrong_shape": ['"Tove"', "[]", "[1]", '{"actors": ["Tove"]}'],
            "not_allowed": [
                '["Zed"]',
                '["Tove", "Tove"]',
                '["Tove", "Environment"]',
                '["<SCENE_END>", "Tove"]',
            ],
        },
        "world_update": {
            "wrong_shape": [
                '{"update_global": false, "global_state": null}',
                f'{{"update_global": false, "global_state": {text}, "update_location": false, "location_state": null}}',
                '{"update_global": true, "global_state": null, "update_location": false, "location_state": null}',
                f'{{"update_global": false, "global_state": null, "update_location": false, "location_state": {state}}}',
                '{"update_global": false, "global_state": null, "update_location": true, "location_state": "x"}',
            ],
        },
        "interaction_gen": {
            "wrong_shape": ["", " \n", "hi \ud83d"],
            "not_allowed": [
                "hi <|im_end|>",
                "<think>no</think> hi",
                'hi\n["Pike"]: go',
                '["A", "B\\"c"] : x',
            ],
        },
        "character_update": {
            "wrong_shape": [
                '{"hidden_tracker": null, "profile_updated": false, "updated_profile": "x", "short_description": "x"}',
                '{"hidden_tracker": null, "profile_updated": true, "updated_profile": null, "short_description": "x"}',
                '{"hidden_tracker": "", "profile_updated": false, "updated_profile": null, "short_description": "x"}',
                '{"profile_updated": false, "updated_profile": null, "short_description": "x"}',
            ],
        },
    }
    return [
        pytest.param(name, kind, completion, id=f"{name} {kind} {completion[:40]!a}")
        for name, kinds in cases.items()
        for kind, completions in kinds.items()
        for completion in completions
    ]


@pytest.mark.parametrize(("name", "kind", "completion"), _wrong())
def test_a_wrong_answer_is_refused_by_its_kind(name: str, kind: str, completion: str) -> None:
    with pytest.raises(ParseError) as caught:
        TASKS[name].parse(completion, SPECIMENS[name][0].input)
    assert caught.value.kind == kind


def test_a_place_cannot_change_in_a_scene_without_one() -> None:
    changed, nowhere = SPECIMENS["world_update"][0], SPECIMENS["world_update"][2]
    task = TASKS["world_update"]
    gold = task.format_target(changed.target)
    with pytest.raises(ParseError, match="not_allowed"):
        task.parse(gold, nowhere.input)
    assert not CONSTRAINED.accepts(task.schema(nowhere.input), gold)


@pytest.mark.parametrize(
    "entities", [[{"name": "bell", "state": "a"}] * 2, [{"name": "Tove", "state": "asleep"}]]
)
def test_a_new_place_state_names_nothing_twice_and_no_person(entities: list[dict[str, str]]) -> None:
    specimen = SPECIMENS["world_update"][0]
    state = LocationState.model_validate({"description": "d", "important_entities": entities})
    gold = TASKS["world_update"].format_target(specimen.target.model_copy(update={"location_state": state}))
    with pytest.raises(ParseError, match="not_allowed"):
        TASKS["world_update"].parse(gold, specimen.input)


def test_a_tracker_that_is_there_is_shown_whatever_its_source_provides() -> None:
    role = sections.Role(name="Ada", hidden_tracker="a debt", tracked=False)
    assert "Hidden tracker:\na debt" in sections.role([role], motivations=False)


def test_a_group_comes_back_in_cast_order_whatever_order_it_was_answered_in() -> None:
    inp = SPECIMENS["next_character"][0].input
    cast = [member.name for member in inp.cast]
    assert NEXT_CHARACTER.parse(json.dumps(cast[::-1]), inp).actors == cast
    for alone in (ENVIRONMENT, SCENE_END, cast[1]):
        assert NEXT_CHARACTER.parse(json.dumps([alone]), inp).actors == [alone]


def test_a_name_in_an_answer_may_hold_quotes_and_apostrophes_h48() -> None:
    inp = NextCharacterInput(
        global_state=None,
        scenario="s",
        cast=[CastMember(name="Maelle O'Dunn"), CastMember(name='the "Gull"')],
        place=ScenePlace(),
        prior=[],
        live=[],
    )
    for member in inp.cast:
        gold = NEXT_CHARACTER.format_target(NEXT_CHARACTER.parse(json.dumps([member.name]), inp))
        assert CONSTRAINED.accepts(NEXT_CHARACTER.schema(inp), gold)


# --- fitting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "specimen"), CASES)
def test_fitting_drops_as_few_of_the_oldest_interactions_as_it_takes_and_whole_ones(
    name: str, specimen: Specimen
) -> None:
    task = TASKS[name]
    most = task._droppable(specimen.input)
    for drop in range(most + 1):
        wanted = task._prompt(specimen.input, 0, drop)
        budget = Budget(characters, characters(wanted.messages))
        if any(
            characters(task._prompt(specimen.input, 0, d).messages) <= budget.max_tokens for d in range(drop)
        ):
            continue
        fitted = task.render(specimen.input, budget=budget)
        assert fitted == wanted
        assert fitted.omitted == drop
        text = shown(fitted.messages)
        assert (f"({drop} earlier interactions omitted)" in text) == (drop > 0)
    too_short = Budget(characters, 10)
    with pytest.raises(PromptTooLong):
        task.render(specimen.input, budget=too_short)


def test_len_h12_system_scenario_and_newest_turn_outlive_a_history_that_overflows() -> None:
    turns = [Interaction(actors=["Ada"], content=f"turn {i} " + "x" * 100) for i in range(40)]
    inp = NextCharacterInput(
        global_state="the world " + "g" * 200,
        scenario="the scenario",
        cast=[CastMember(name="Ada")],
        place=ScenePlace(),
        prior=turns[:20],
        live=turns[20:],
    )
    fitted = NEXT_CHARACTER.render(inp, budget=Budget(characters, 3000))
    text = shown(fitted.messages)
    assert characters(fitted.messages) <= 3000
    assert fitted.messages[0]["role"] == "system" and "the scenario" in text and "the world" in text
    kept = [i for i in range(40) if f"turn {i} x" in text]
    assert kept == list(range(40 - len(kept), 40)) and 0 < len(kept) < 20
    assert fitted.omitted == 40 - len(kept)
    assert fitted.moved_to_prior == 20 - len(kept) + 1
    assert fitted.messages[-1]["content"].endswith(turns[-1].content)


def test_fitting_counts_the_own_turns_that_lose_their_supervision() -> None:
    specimen = SPECIMENS["interaction_gen"][0]
    prior, live = len(specimen.input.prior), specimen.input.live
    own = [i for i, turn in enumerate(live) if turn.actors == specimen.input.actors]
    for drop in range(prior + len(live)):
        fitted = INTERACTION_GEN._prompt(specimen.input, 0, drop)
        gone = max(0, drop - prior)
        # A turn right behind the gap moves into the story so far, where the next one sees it.
        gone += drop > 0 and drop >= prior and gone in own
        assert fitted.moved_to_prior == sum(i < gone for i in own)
        supervised = [m for m in fitted.messages if m["role"] == "assistant"]
        assert len(supervised) == len(own) - fitted.moved_to_prior


@pytest.mark.parametrize("num_prior", [0, 1, 2])
def test_every_turn_that_stays_supervised_still_sees_the_interaction_before_it(num_prior: int) -> None:
    turns = [Interaction(actors=[name], content=f"turn {i}") for i, name in enumerate(["Ada", "Ben"] * 3)]
    cast = [CastMember(name="Ada"), CastMember(name="Ben")]
    inp = NextCharacterInput(
        global_state=None,
        scenario="s",
        cast=cast,
        place=ScenePlace(),
        prior=turns[:num_prior],
        live=turns[num_prior:],
    )
    for drop in range(1, len(turns)):
        messages = NEXT_CHARACTER._prompt(inp, 0, drop).messages
        before = messages[1]["content"].split("# Story so far\n")[1].split("# Instructions")[0]
        supervised = [message["content"] for message in messages if message["role"] == "assistant"]
        first = len(turns) - len(supervised)
        assert f"turn {first - 1}" in before


def test_one_fit_counts_tokens_a_logarithmic_number_of_times() -> None:
    calls = 0

    def count(messages: list[Message]) -> int:
        nonlocal calls
        calls += 1
        return characters(messages)

    turns = [Interaction(actors=["Ada"], content=f"turn {i} " + "x" * 100) for i in range(1000)]
    inp = SPECIMENS["world_update"][0].input.model_copy(update={"prior": turns})
    TASKS["world_update"].render(inp, budget=Budget(count, 50_000))
    assert calls < 16


# --- fingerprints ----------------------------------------------------------------------------------------


def test_fingerprints_differ_between_tasks_and_follow_wordings_formats_and_schemas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {name: task.fingerprint() for name, task in TASKS.items()}
    assert len(set(before.values())) == len(TASKS)

    def now() -> dict[str, str]:
        task_base._fingerprint.cache_clear()
        return {name: task.fingerprint() for name, task in TASKS.items()}

    assert now() == before
    real = task_base.prompt_text
    for file, touched in [
        ("world_update.3", {"world_update"}),
        ("interaction_gen_group.2", {"interaction_gen"}),
        ("interaction_gen_environment.1", {"interaction_gen"}),
        ("system.world_model", {"scene_cast", "location_scenario", "next_character", "world_update"}),
    ]:
        monkeypatch.setattr(
            task_base, "prompt_text", lambda name, file=file: real(name) + "." * (name == file)
        )
        changed = {name for name, mark in now().items() if mark != before[name]}
        assert changed == touched, file
    monkeypatch.setattr(task_base, "prompt_text", real)
    in_a_scene = {"next_character", "world_update", "interaction_gen"}
    for constant, touched in [
        ("NOTHING_VISIBLE", {"interaction_gen"}),
        ("SEGMENT_START", {"interaction_gen"}),
        ("STORY_BEGINS", {"scene_cast", "location_scenario", "motivation_update"}),
        ("NOTHING_SEEN", {"scene_cast", "location_scenario", "motivation_update", "character_update"}),
        ("NOTHING_YET", {"next_character", "interaction_gen"}),
        ("NO_PLACE", {"motivation_update", *in_a_scene}),
        ("EMPTY_TRACKER", {"motivation_update", "interaction_gen", "character_update"}),
        ("ENVIRONMENT_ROLE", {"interaction_gen"}),
        ("NOT_RECORDED", set(TASKS)),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(sections, constant, "(changed)")
            assert {name for name, mark in now().items() if mark != before[name]} == touched, constant
    with monkeypatch.context() as patch:
        patch.setattr(task_base, "language_line", lambda language: "In your own tongue.")
        assert {name for name, mark in now().items() if mark != before[name]} == set(TASKS)
    with monkeypatch.context() as patch:
        patch.setattr(
            LocationState, "model_dump", lambda self, **kw: "grouped" if self.sub_locations else "flat"
        )
        assert {name for name, mark in now().items() if mark != before[name]} == in_a_scene
    monkeypatch.setattr(type(TASKS["scene_cast"]), "schema", lambda self, inp: {"type": "object"})
    assert {name for name, mark in now().items() if mark != before[name]} == {"scene_cast"}
    monkeypatch.undo()
    assert now() == before


def test_live_turns_show_each_choice_and_then_what_followed() -> None:
    messages = NEXT_CHARACTER.render(SPECIMENS["next_character"][0].input).messages
    for choice, turn in pairwise(messages[2:]):
        if choice["role"] == "assistant":
            assert turn["content"].startswith(choice["content"] + ": ")
