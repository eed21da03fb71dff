"""`location_scenario` (World Model): where the next scene plays, and from what setup. EW Table 28."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ewtrain.replay import StoryState
from ewtrain.story import StoryModel
from ewtrain.tasks import sections
from ewtrain.tasks.answers import ParseError, dumps, read_object, read_text_or_null
from ewtrain.tasks.base import (
    NULL,
    TEXT,
    TEXT_OR_NULL,
    SingleTurn,
    TaskInput,
    object_schema,
    refuse_think_tag,
)
from ewtrain.tasks.sections import CastMember, PastScene, PlaceDescription


class LocationScenarioInput(TaskInput):
    global_state: str | None
    locations: list[PlaceDescription]
    previous_scene: PastScene | None
    cast: list[CastMember]


class LocationScenarioTarget(StoryModel):
    """Both None: there is no scene to set up. `location` None alone: the scene has no particular place."""

    location: str | None
    scenario: str | None


class LocationScenario(SingleTurn[LocationScenarioInput, LocationScenarioTarget]):
    name = "location_scenario"
    adapter = "world_model"
    Input = LocationScenarioInput

    def observe(self, state: StoryState, cast: Sequence[str]) -> LocationScenarioInput:
        """Return the Input once the next scene's cast is known."""
        return LocationScenarioInput(
            language=state.book.language,
            global_state=state.global_state,
            locations=[PlaceDescription.of(name, place) for name, place in state.locations.items()],
            previous_scene=PastScene.of(state.previous_scene) if state.previous_scene else None,
            cast=sections.described(state.characters, cast),
        )

    def _blocks(self, inp: LocationScenarioInput, wording: int, drop: int) -> list[str]:
        return [
            sections.world(inp.global_state),
            sections.places("Locations", inp.locations),
            sections.previous_scene(inp.previous_scene, drop),
            sections.people("Cast", inp.cast),
            self._instructions(wording, inp.language),
        ]

    def _droppable(self, inp: LocationScenarioInput) -> int:
        return sections.all_but_newest(inp.previous_scene.interactions if inp.previous_scene else [])

    def schema(self, inp: LocationScenarioInput) -> dict[str, Any]:
        nowhere = object_schema(location=NULL, scenario=TEXT_OR_NULL)
        names = [location.name for location in inp.locations]
        if not names:
            return nowhere
        somewhere = object_schema(location={"type": "string", "enum": names}, scenario=TEXT)
        return {"anyOf": [somewhere, nowhere]}

    def format_target(self, target: LocationScenarioTarget) -> str:
        return dumps({"location": target.location, "scenario": target.scenario})

    def parse(self, completion: str, inp: LocationScenarioInput) -> LocationScenarioTarget:
        refuse_think_tag(completion)
        data = read_object(completion, ("location", "scenario"))
        location = read_text_or_null(data, "location")
        scenario = read_text_or_null(data, "scenario")
        if location is not None and location not in [known.name for known in inp.locations]:
            raise ParseError("not_allowed", f"{location!r} is no location of this story")
        if location is not None and scenario is None:
            raise ParseError("not_allowed", "a location without a scenario")
        return LocationScenarioTarget(location=location, scenario=scenario)
