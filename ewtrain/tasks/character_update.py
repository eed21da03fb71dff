"""`character_update` (Character Agent): what a finished scene did to a character. EW Tables 30-31."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ewtrain.content import visible_to
from ewtrain.replay import StoryState
from ewtrain.story import CharacterUpdate as Update
from ewtrain.story import Interaction, ScenePlan
from ewtrain.tasks import sections
from ewtrain.tasks.answers import dumps, read_object, read_text, read_text_if, read_text_or_null
from ewtrain.tasks.base import (
    NULL,
    TEXT,
    TEXT_OR_NULL,
    SingleTurn,
    TaskInput,
    constant,
    object_schema,
    refuse_think_tag,
)
from ewtrain.tasks.sections import Role

_KEYS = ("hidden_tracker", "profile_updated", "updated_profile", "short_description")


class CharacterUpdateInput(TaskInput):
    """The scene's interactions as the character may see them, its own state as at the scene's start."""

    scenario: str
    role: Role
    interactions: list[Interaction]


class CharacterUpdate(SingleTurn[CharacterUpdateInput, Update]):
    name = "character_update"
    adapter = "character_agent"
    Input = CharacterUpdateInput

    def observe(
        self, state: StoryState, plan: ScenePlan, name: str, turns: Sequence[Interaction]
    ) -> CharacterUpdateInput:
        """Return the Input of one member of the cast after a scene of these turns."""
        return CharacterUpdateInput(
            language=state.book.language,
            scenario=plan.scenario,
            role=sections.role_of(state, name, plan.motivations.get(name)),
            interactions=visible_to([name], turns),
        )

    def _blocks(self, inp: CharacterUpdateInput, wording: int, drop: int) -> list[str]:
        return [
            sections.block("Scenario", inp.scenario),
            self._instructions(wording, inp.language, character=inp.role.name),
            sections.role([inp.role], motivations=True),
            sections.story_so_far(inp.interactions, drop, over=True),
        ]

    def _droppable(self, inp: CharacterUpdateInput) -> int:
        return sections.all_but_newest(inp.interactions)

    def schema(self, inp: CharacterUpdateInput) -> dict[str, Any]:
        return {
            "anyOf": [
                object_schema(
                    hidden_tracker=TEXT_OR_NULL,
                    profile_updated=constant(updated),
                    updated_profile=profile,
                    short_description=TEXT,
                )
                for updated, profile in ((True, TEXT), (False, NULL))
            ]
        }

    def format_target(self, target: Update) -> str:
        return dumps(
            {
                "hidden_tracker": target.hidden_tracker,
                "profile_updated": target.profile is not None,
                "updated_profile": target.profile,
                "short_description": target.short_description,
            }
        )

    def parse(self, completion: str, inp: CharacterUpdateInput) -> Update:
        refuse_think_tag(completion)
        data = read_object(completion, _KEYS)
        return Update(
            hidden_tracker=read_text_or_null(data, "hidden_tracker"),
            profile=read_text_if(data, "profile_updated", "updated_profile"),
            short_description=read_text(data, "short_description"),
        )
