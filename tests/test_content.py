"""Thought, speech and action; whose thoughts are visible (contract sections 1 and 2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ewtrain.content import control_strings, parse_parts, unclosed_brackets, visible_to, without_thoughts
from ewtrain.story import ENVIRONMENT, Interaction

MARKS = st.text(st.sampled_from("ab []()\n"), max_size=24)


def kinds(content: str) -> list[tuple[str, str]]:
    return [(part.kind, content[part.start : part.end]) for part in parse_parts(content)]


def test_parts_come_in_order_and_the_outermost_bracket_decides_the_kind() -> None:
    assert kinds("[Why?] Come in. (he opens [the] door) Now.") == [
        ("thought", "[Why?]"),
        ("speech", " Come in. "),
        ("action", "(he opens [the] door)"),
        ("speech", " Now."),
    ]
    assert kinds("[a (b) [c] d]") == [("thought", "[a (b) [c] d]")]


def test_an_unclosed_bracket_runs_to_the_end_of_its_line_and_is_reported() -> None:
    assert kinds("Go [now\nthen") == [("speech", "Go "), ("thought", "[now"), ("speech", "\nthen")]
    assert kinds("(he [waits] on\n[x]") == [
        ("action", "(he [waits] on"),
        ("speech", "\n"),
        ("thought", "[x]"),
    ]
    assert unclosed_brackets("Go [now\n(then") == [3, 8]
    assert unclosed_brackets("Go [now] (then)") == []


def test_a_stray_closer_is_speech() -> None:
    assert kinds("a) b]") == [("speech", "a) b]")]


def test_when_thoughts_go_what_stays_is_joined_by_one_space() -> None:
    assert without_thoughts("Hello [hm]  there (waves) [so]") == "Hello there (waves)"
    assert without_thoughts("[only this]") == ""
    assert without_thoughts("untouched  (two  spaces)") == "untouched  (two  spaces)"


@given(MARKS)
def test_parts_cover_the_whole_turn_without_gap_or_overlap(content: str) -> None:
    parts = parse_parts(content)
    assert "".join(content[part.start : part.end] for part in parts) == content
    assert all(part.start < part.end for part in parts)


@given(MARKS)
def test_taking_thoughts_out_twice_is_taking_them_out_once(content: str) -> None:
    once = without_thoughts(content)
    assert without_thoughts(once) == once
    assert once == content or once == once.strip()


@given(MARKS)
def test_nothing_that_is_a_thought_outlives_the_cut(content: str) -> None:
    marked = "".join(
        content[part.start : part.end].replace("a", "S")
        if part.kind == "thought"
        else content[part.start : part.end]
        for part in parse_parts(content)
    )
    assert "S" not in without_thoughts(marked)


TURNS = [
    Interaction(actors=["Ada"], content="[A] hi"),
    Interaction(actors=["Ben"], content="[B]"),
    Interaction(actors=["Ada", "Ben"], content="[AB] (nod)"),
    Interaction(actors=[ENVIRONMENT], content="[sic] wind"),
]


@pytest.mark.parametrize(
    ("viewer", "seen"),
    [
        (["Ada"], ["[A] hi", "[AB] (nod)", "[sic] wind"]),
        (["Ben"], ["hi", "[B]", "[AB] (nod)", "[sic] wind"]),
        (["Ben", "Cleo"], ["hi", "[B]", "[AB] (nod)", "[sic] wind"]),
        (["Cleo"], ["hi", "(nod)", "[sic] wind"]),
        ([ENVIRONMENT], ["hi", "(nod)", "[sic] wind"]),
    ],
)
def test_a_viewer_sees_its_own_thoughts_and_those_of_sets_it_shares(
    viewer: list[str], seen: list[str]
) -> None:
    assert [turn.content for turn in visible_to(viewer, TURNS)] == seen


def test_control_strings_are_found_in_order() -> None:
    text = "a <|im_end|> <think>b</think> <SCENE_END> ===Segment Start=== <b>"
    assert control_strings(text) == [
        "<|im_end|>",
        "<think>",
        "</think>",
        "<SCENE_END>",
        "===Segment Start===",
    ]
