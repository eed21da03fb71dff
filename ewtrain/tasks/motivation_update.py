"""`motivation_update` (Character Agent): why a character enters the next scene. EW Table 28."""

from __future__ import annotations

from typing import Any

from ewtrain.content import visible_to
from ewtrain.replay import StoryState
from ewtrain.story import ScenePlan, StoryModel
from ewtrain.tasks import sections
from ewtrain.tasks.answers import dumps, read_object, read_text
from ewtrain.tasks.base import TEXT, SingleTurn, TaskInput, object_schema, refuse_think_tag
from ewtrain.tasks.sections import CastMember, PastScene, PlaceDescription, Role


class MotivationUpdateInput(TaskInput):
    """`location` None: the scene has no place, or (`places_recorded=False`) the source knows none."""

    global_state: str | None
    scenario: str
    cast: list[CastMember]
    location: PlaceDescription | None
    places_recorded: bool = True
    previous_scene: PastScene | None
    role: Role


class MotivationUpdateTarget(StoryModel):
    motivation: str


class MotivationUpdate(SingleTurn[MotivationUpdateInput, MotivationUpdateTarget]):
    name = "motivation_update"
    adapter = "character_agent"
    Input = MotivationUpdateInput

    def observe(self, state: StoryState, plan: ScenePlan, name: str) -> MotivationUpdateInput:
        """Return the Input of one member of a planned scene's cast, the previous scene as it may see it."""
        previous = state.previous_scene
        return MotivationUpdateInput(
            language=state.book.language,
            global_state=state.global_state,
            scenario=plan.scenario,
            cast=sections.described(state.characters, plan.cast),
            location=PlaceDescription.of(plan.location, state.locations[plan.location])
            if plan.location
            else None,
            places_recorded=sections.place_of(state, plan.location).recorded,
            previous_scene=PastScene.of(previous, visible_to([name], previous.interactions))
            if previous
            else None,
            role=sections.role_of(state, name, motivation=None),
        )

    def _blocks(self, inp: MotivationUpdateInput, wording: int, drop: int) -> list[str]:
        return [
            sections.world(inp.global_state),
            sections.block("Next scenario", inp.scenario),
            sections.people("Cast", inp.cast),
            sections.next_place(inp.location, inp.places_recorded),
            sections.previous_scene(inp.previous_scene, drop),
            self._instructions(wording, inp.language, character=inp.role.name),
            sections.role([inp.role], motivations=False),
        ]

    def _droppable(self, inp: MotivationUpdateInput) -> int:
        return sections.all_but_newest(inp.previous_scene.interactions if inp.previous_scene else [])

    def schema(self, inp: MotivationUpdateInput) -> dict[str, Any]:
        return object_schema(motivation=TEXT)

    def format_target(self, target: MotivationUpdateTarget) -> str:
        return dumps({"motivation": target.motivation})

    def parse(self, completion: str, inp: MotivationUpdateInput) -> MotivationUpdateTarget:
        refuse_think_tag(completion)
        data = read_object(completion, ("motivation",))
        return MotivationUpdateTarget(motivation=read_text(data, "motivation"))
