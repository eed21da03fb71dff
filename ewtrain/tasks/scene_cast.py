"""`scene_cast` (World Model): is there a next scene, and who is in it? EW Tables 8 and 28."""

from __future__ import annotations

from typing import Any

from ewtrain.replay import StoryState
from ewtrain.story import StoryModel
from ewtrain.tasks import sections
from ewtrain.tasks.answers import ParseError, dumps, read_flag, read_names, read_object
from ewtrain.tasks.base import SingleTurn, TaskInput, constant, names_schema, object_schema
from ewtrain.tasks.sections import CastMember, PastScene


class SceneCastInput(TaskInput):
    global_state: str | None
    characters: list[CastMember]
    previous_scene: PastScene | None


class SceneCastTarget(StoryModel):
    has_next_scene: bool
    involved_characters: list[str] = []


class SceneCast(SingleTurn[SceneCastInput, SceneCastTarget]):
    name = "scene_cast"
    adapter = "world_model"
    Input = SceneCastInput

    def observe(self, state: StoryState) -> SceneCastInput:
        """Return the Input at a scene boundary."""
        return SceneCastInput(
            language=state.book.language,
            global_state=state.global_state,
            characters=sections.described(state.characters, state.characters),
            previous_scene=PastScene.of(state.previous_scene) if state.previous_scene else None,
        )

    def _blocks(self, inp: SceneCastInput, wording: int, drop: int) -> list[str]:
        return [
            sections.world(inp.global_state),
            sections.people("Characters", inp.characters),
            sections.previous_scene(inp.previous_scene, drop),
            self._instructions(wording, inp.language),
        ]

    def _droppable(self, inp: SceneCastInput) -> int:
        return sections.all_but_newest(inp.previous_scene.interactions if inp.previous_scene else [])

    def schema(self, inp: SceneCastInput) -> dict[str, Any]:
        names = [character.name for character in inp.characters]
        return {
            "anyOf": [
                object_schema(has_next_scene=constant(True), involved_characters=names_schema(names)),
                object_schema(has_next_scene=constant(False)),
            ]
        }

    def format_target(self, target: SceneCastTarget) -> str:
        if not target.has_next_scene:
            return dumps({"has_next_scene": False})
        return dumps({"has_next_scene": True, "involved_characters": target.involved_characters})

    def parse(self, completion: str, inp: SceneCastInput) -> SceneCastTarget:
        data = read_object(completion, ("has_next_scene",), optional=("involved_characters",))
        if not read_flag(data, "has_next_scene"):
            if "involved_characters" in data:
                raise ParseError(
                    "wrong_shape", "involved_characters is left out when has_next_scene is false"
                )
            return SceneCastTarget(has_next_scene=False)
        if data.get("involved_characters", []) == []:
            raise ParseError("not_allowed", "a next scene has at least one character")
        names = read_names(
            data["involved_characters"],
            [character.name for character in inp.characters],
            "involved_characters",
        )
        return SceneCastTarget(has_next_scene=True, involved_characters=names)
