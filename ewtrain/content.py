"""Thought, speech and action in a turn, and whose thoughts are visible to whom (contract sections 1, 2)."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from ewtrain.story import ENVIRONMENT, Interaction

Kind = Literal["thought", "speech", "action"]

# Strings that a chat template or a prompt of ours gives a meaning; in book text they are ordinary text.
CONTROL_STRING = re.compile(r"<\|[^|<>\n]*\|>|</?think>|<SCENE_END>|===Segment Start===")

_OPEN = {"[": "thought", "(": "action"}
_OPENER = re.compile(r"[\[(]")
_BRACKETS = {"[": re.compile(r"[\[\]]"), "(": re.compile(r"[()]")}


@dataclass(frozen=True)
class Part:
    """A run of one kind in a turn: `content[start:end]`, brackets included."""

    kind: Kind
    start: int
    end: int
    closed: bool = True


def _partners(content: str, opener: str) -> dict[int, int]:
    """Return the position of each opener's closing bracket, counting brackets of that kind alone."""
    stack: list[int] = []
    partners: dict[int, int] = {}
    for bracket in _BRACKETS[opener].finditer(content):
        if bracket[0] == opener:
            stack.append(bracket.start())
        elif stack:
            partners[stack.pop()] = bracket.start()
    return partners


def parse_parts(content: str) -> list[Part]:
    """Return the parts of a turn in order; together they cover all of it.

    The outermost bracket decides the kind. An opener without a closer runs to the end of its line
    (`closed=False`); a closer without an opener is speech.
    """
    partners = {opener: _partners(content, opener) for opener in _OPEN if opener in content}
    parts: list[Part] = []
    speech_from = i = 0

    def end_speech(at: int) -> None:
        if at > speech_from:
            parts.append(Part("speech", speech_from, at))

    while opener := _OPENER.search(content, i):
        i, char = opener.start(), opener[0]
        end_speech(i)
        partner = partners[char].get(i)
        if partner is None:
            line_end = content.find("\n", i)
            end, closed = (len(content) if line_end < 0 else line_end), False
        else:
            end, closed = partner + 1, True
        parts.append(Part(_OPEN[char], i, end, closed))  # type: ignore[arg-type]
        speech_from = i = end
    end_speech(len(content))
    return parts


def unclosed_brackets(content: str) -> list[int]:
    """Return the positions of thought and action brackets that are never closed."""
    return [part.start for part in parse_parts(content) if not part.closed]


def control_strings(text: str) -> list[str]:
    """Return the control strings found in a text, in order."""
    return CONTROL_STRING.findall(text)


@functools.lru_cache(maxsize=256)  # a scene's turns, each asked for by every member of its cast
def without_thoughts(content: str) -> str:
    """Return the turn as others perceive it: thoughts cut out, what stays joined by one space, stripped.

    A turn with no thought comes back unchanged; a turn of thought alone comes back empty.
    """
    if "[" not in content:
        return content
    parts = parse_parts(content)
    if all(part.kind != "thought" for part in parts):
        return content
    kept: list[str] = []
    run_from: int | None = None
    for part in parts:
        if part.kind == "thought":
            if run_from is not None:
                kept.append(content[run_from : part.start])
            run_from = None
        elif run_from is None:
            run_from = part.start
    if run_from is not None:
        kept.append(content[run_from:])
    return " ".join(piece for piece in map(str.strip, kept) if piece)


def visible_to(viewer: Collection[str], interactions: Iterable[Interaction]) -> list[Interaction]:
    """Return the interactions as an acting set perceives them; the World Model needs no such view.

    The one visibility rule, for builder and simulator alike: the viewer keeps its own thoughts and those
    of any acting set that shares a member with it; Environment's text is never stripped, and Environment
    sees no one's thoughts. An interaction that was thought alone disappears.
    """
    seen: list[Interaction] = []
    for interaction in interactions:
        if interaction.actors == [ENVIRONMENT]:
            seen.append(interaction)
            continue
        if any(actor in viewer for actor in interaction.actors):
            seen.append(interaction)
            continue
        content = without_thoughts(interaction.content)
        if content == interaction.content:
            seen.append(interaction)
        elif content:
            seen.append(Interaction(actors=interaction.actors, content=content))
    return seen
