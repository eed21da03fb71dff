"""`world_update` (World Model): did the latest interaction change the world for good? EW Table 30."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from ewtrain.replay import StoryState
from ewtrain.story import Interaction, LocationState, ScenePlan, StoryModel, entity_faults
from ewtrain.tasks import sections
from ewtrain.tasks.answers import ParseError, dumps, read_flag, read_object, read_text_if
from ewtrain.tasks.base import NULL, TEXT, SingleTurn, TaskInput, constant, object_schema, refuse_think_tag
from ewtrain.tasks.sections import CastMember, ScenePlace


class WorldUpdateInput(TaskInput):
    """`prior` ends with the latest interaction, the one to judge."""

    global_state: str | None
    scenario: str
    cast: list[CastMember]
    place: ScenePlace
    prior: list[Interaction]


class WorldUpdateTarget(StoryModel):
    """The complete new states; None where the interaction left a state as it was."""

    global_state: str | None = None
    location_state: LocationState | None = None


_ENTITIES = {"type": "array", "items": object_schema(name=TEXT, state=TEXT)}
_FLAT = object_schema(description=TEXT, important_entities=_ENTITIES)
_GROUPED = object_schema(
    description=TEXT,
    sub_locations={
        "type": "array",
        "items": object_schema(name=TEXT, description=TEXT, important_entities=_ENTITIES),
    },
)


class WorldUpdate(SingleTurn[WorldUpdateInput, WorldUpdateTarget]):
    name = "world_update"
    adapter = "world_model"
    Input = WorldUpdateInput

    def observe(self, state: StoryState, plan: ScenePlan, turns: Sequence[Interaction]) -> WorldUpdateInput:
        """Return the Input after the last of `turns`, `state` being still that before it."""
        return WorldUpdateInput(
            language=state.book.language,
            global_state=state.global_state,
            scenario=plan.scenario,
            cast=sections.described(state.characters, plan.cast, plan.motivations),
            place=sections.place_of(state, plan.location),
            prior=list(turns),
        )

    def _blocks(self, inp: WorldUpdateInput, wording: int, drop: int) -> list[str]:
        return [
            *sections.stage(inp.global_state, inp.scenario, inp.cast, inp.place, motivations=True),
            sections.story_so_far(inp.prior, drop),
            self._instructions(wording, inp.language),
        ]

    def _droppable(self, inp: WorldUpdateInput) -> int:
        return sections.all_but_newest(inp.prior)

    def schema(self, inp: WorldUpdateInput) -> dict[str, Any]:
        globals_ = [(constant(True), TEXT), (constant(False), NULL)]
        locations: list[tuple[dict[str, Any], dict[str, Any]]] = [(constant(False), NULL)]
        if inp.place.name is not None:
            locations.insert(0, (constant(True), {"anyOf": [_FLAT, _GROUPED]}))
        return {
            "anyOf": [
                object_schema(
                    update_global=update_global,
                    global_state=global_state,
                    update_location=update_location,
                    location_state=location_state,
                )
                for update_global, global_state in globals_
                for update_location, location_state in locations
            ]
        }

    def format_target(self, target: WorldUpdateTarget) -> str:
        new_location = target.location_state.model_dump(exclude_none=True) if target.location_state else None
        return dumps(
            {
                "update_global": target.global_state is not None,
                "global_state": target.global_state,
                "update_location": new_location is not None,
                "location_state": new_location,
            }
        )

    def parse(self, completion: str, inp: WorldUpdateInput) -> WorldUpdateTarget:
        refuse_think_tag(completion)
        data = read_object(completion, ("update_global", "global_state", "update_location", "location_state"))
        global_state = read_text_if(data, "update_global", "global_state")
        if not read_flag(data, "update_location"):
            if data["location_state"] is not None:
                raise ParseError("wrong_shape", "location_state is null when update_location is false")
            return WorldUpdateTarget(global_state=global_state)
        if inp.place.name is None:
            raise ParseError("not_allowed", "update_location is true in a scene without a location")
        try:
            location_state = LocationState.model_validate(data["location_state"])
        except ValidationError as error:
            raise ParseError("wrong_shape", f"location_state: {error.errors()[0]['msg']}") from None
        for path, wrong, _ in entity_faults(location_state, [member.name for member in inp.cast]):
            raise ParseError("not_allowed", f"location_state.{path}: {wrong}")
        return WorldUpdateTarget(global_state=global_state, location_state=location_state)
