"""The seven tasks: THE definition of their prompts, schemas and parsers (contract section 2)."""

from __future__ import annotations

from typing import Any

from ewtrain.story import TASK_NAMES, TaskName
from ewtrain.tasks.answers import ParseError
from ewtrain.tasks.base import WORDINGS, Budget, Prompt, PromptTooLong, Task
from ewtrain.tasks.character_update import CharacterUpdate
from ewtrain.tasks.interaction_gen import InteractionGen
from ewtrain.tasks.location_scenario import LocationScenario
from ewtrain.tasks.motivation_update import MotivationUpdate
from ewtrain.tasks.next_character import NextCharacter
from ewtrain.tasks.scene_cast import SceneCast
from ewtrain.tasks.world_update import WorldUpdate

SCENE_CAST = SceneCast()
LOCATION_SCENARIO = LocationScenario()
MOTIVATION_UPDATE = MotivationUpdate()
NEXT_CHARACTER = NextCharacter()
INTERACTION_GEN = InteractionGen()
WORLD_UPDATE = WorldUpdate()
CHARACTER_UPDATE = CharacterUpdate()

TASKS: dict[TaskName, Task[Any, Any]] = {
    task.name: task
    for task in (
        SCENE_CAST,
        LOCATION_SCENARIO,
        MOTIVATION_UPDATE,
        NEXT_CHARACTER,
        INTERACTION_GEN,
        WORLD_UPDATE,
        CHARACTER_UPDATE,
    )
}
assert tuple(TASKS) == TASK_NAMES

__all__ = [
    "TASKS",
    "WORDINGS",
    "Budget",
    "ParseError",
    "Prompt",
    "PromptTooLong",
    "Task",
]
