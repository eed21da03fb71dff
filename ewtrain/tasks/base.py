"""What every task is: one place for its prompt, schema and parser."""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from string import Template
from typing import Any, ClassVar, Generic, TypeVar

from ewtrain.chat import Adapter, Message, system, user
from ewtrain.errors import EwtrainError
from ewtrain.story import StoryModel, TaskName
from ewtrain.tasks.answers import ParseError, dumps
from ewtrain.tasks.sections import block

WORDINGS = 4


class TaskInput(StoryModel):
    """What a task's prompt is made of. Texts are as the reader may see them: nothing hidden is in it."""

    language: str = "en"


class PromptTooLong(EwtrainError):
    """A prompt does not fit its budget even with all that may be dropped gone (error kind `length`)."""

    def __init__(self, task: str, tokens: int, max_tokens: int) -> None:
        super().__init__(
            f"{task}: {tokens} tokens with everything dropped that may be, {max_tokens} allowed. "
            "Raise max_length, or shorten the states."
        )
        self.tokens = tokens
        self.max_tokens = max_tokens


@dataclass(frozen=True)
class Budget:
    """How long a prompt may get: `count_tokens` of its messages must stay within `max_tokens`.

    The caller counts what it needs: a client the prompt with its generation header, a trainer the whole
    row, its last answer added.
    """

    count_tokens: Callable[[list[Message]], int]
    max_tokens: int


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt. `omitted` interactions were dropped to fit; `moved_to_prior` of the live
    exchanges among them lost their supervision."""

    messages: list[Message]
    omitted: int = 0
    moved_to_prior: int = 0


@functools.cache
def prompt_text(name: str) -> str:
    """Return a wording file of `prompts/`, its edges stripped."""
    return (
        resources.files("ewtrain.tasks").joinpath("prompts", f"{name}.md").read_text(encoding="utf-8").strip()
    )


@functools.cache
def language_line(language: str) -> str:
    """Return the last line of the instructions, naming the book's language; empty for English."""
    if language == "en":
        return ""
    import langcodes

    return f"Write in {langcodes.Language.get(language).display_name()}."


InputT = TypeVar("InputT", bound=TaskInput)
TargetT = TypeVar("TargetT")


class Task(ABC, Generic[InputT, TargetT]):
    """A task's prompt (`render`), its answer's schema, and the answer written and read.

    Sources: EW Section 3.2, C.3 and Tables 28-31; formats as in contract section 2.
    """

    name: ClassVar[TaskName]
    adapter: ClassVar[Adapter]
    Input: ClassVar[type[TaskInput]]

    def render(self, inp: InputT, *, wording: int = 0, budget: Budget | None = None) -> Prompt:
        """Return the prompt in one of `WORDINGS` wordings (serving uses 0).

        With a budget the oldest interactions are dropped until it fits, as few as that takes; rules,
        states, scenario and the newest interaction always stay. PromptTooLong if that is not enough.
        """
        whole = self._prompt(inp, wording, 0)
        if budget is None or budget.count_tokens(whole.messages) <= budget.max_tokens:
            return whole

        def tokens(drop: int) -> int:
            return budget.count_tokens(self._prompt(inp, wording, drop).messages)

        low, high = 0, self._droppable(inp)  # low does not fit; the smallest drop that fits is in (low, high]
        if (least := tokens(high)) > budget.max_tokens:
            raise PromptTooLong(self.name, least, budget.max_tokens)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if tokens(middle) <= budget.max_tokens else (middle, high)
        return self._prompt(inp, wording, high)

    @abstractmethod
    def _prompt(self, inp: InputT, wording: int, drop: int) -> Prompt:
        """Return the prompt without its `drop` oldest interactions."""

    @abstractmethod
    def _droppable(self, inp: InputT) -> int:
        """Return how many interactions may be dropped: all but the newest."""

    @abstractmethod
    def schema(self, inp: InputT) -> dict[str, Any] | None:
        """Return the JSON schema of the answer for constrained decoding, names as enums; None for free text."""

    @abstractmethod
    def format_target(self, target: TargetT) -> str:
        """Return the answer as the assistant says it."""

    def answers(self, inp: InputT, target: TargetT) -> list[str]:
        """Return what the assistant says in the row of this Input and Target, turn by turn."""
        return [self.format_target(target)]

    @abstractmethod
    def parse(self, completion: str, inp: InputT) -> TargetT:
        """Return the answer read from a completion; ParseError not_json, wrong_shape or not_allowed."""

    def fingerprint(self) -> str:
        """Return a hash of all that decides what this task's prompts and answers look like.

        It covers all wordings, the system message, block formats, separators and schemas, by hashing what
        the task makes of its specimens.
        """
        return _fingerprint(self)

    def _opening(self, *blocks: str) -> list[Message]:
        return [system(prompt_text(f"system.{self.adapter}")), user("\n\n".join(blocks))]

    def _instructions(self, wording: int, language: str, file: str | None = None, **names: str) -> str:
        text = Template(prompt_text(f"{file or self.name}.{wording}")).substitute(names)
        line = language_line(language)
        return block("Instructions", f"{text}\n{line}" if line else text)


class SingleTurn(Task[InputT, TargetT]):
    """A task asked once: one user message, one answer."""

    def _prompt(self, inp: InputT, wording: int, drop: int) -> Prompt:
        return Prompt(self._opening(*self._blocks(inp, wording, drop)), omitted=drop)

    @abstractmethod
    def _blocks(self, inp: InputT, wording: int, drop: int) -> list[str]:
        """Return the user message's blocks in the contract's order."""


def refuse_think_tag(completion: str) -> None:
    """Raise ParseError for `</think>`: some chat templates delete what stands before it."""
    if "</think>" in completion:
        raise ParseError("not_allowed", "the answer holds '</think>'")


def object_schema(**properties: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of an object with exactly these keys, in this order."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT: dict[str, Any] = {"type": "string"}
NULL: dict[str, Any] = {"type": "null"}
TEXT_OR_NULL: dict[str, Any] = {"anyOf": [TEXT, NULL]}


def constant(value: Any) -> dict[str, Any]:
    return {"const": value}


def names_schema(names: list[str], most: int | None = None) -> dict[str, Any]:
    return {
        "type": "array",
        "items": {"type": "string", "enum": names},
        "minItems": 1,
        "maxItems": most or len(names),
    }


@functools.cache
def _fingerprint(task: Task[Any, Any]) -> str:
    from ewtrain.tasks.specimens import SPECIMENS

    digest = hashlib.sha256()
    for specimen in SPECIMENS[task.name]:
        for wording in range(WORDINGS):
            for drop in range(task._droppable(specimen.input) + 1):
                digest.update(dumps(task._prompt(specimen.input, wording, drop).messages).encode())
        digest.update(dumps(task.schema(specimen.input)).encode())
        digest.update(task.format_target(specimen.target).encode())
    return digest.hexdigest()
