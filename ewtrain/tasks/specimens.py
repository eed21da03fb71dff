"""Tiny Inputs and Targets for each task: what golden files, fingerprints and docs are made from.

Together they pass through every branch of the rendering: nested, flat and missing places, unrecorded
blocks, groups, Environment, live turns, a language other than English.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ewtrain.story import (
    ENVIRONMENT,
    SCENE_END,
    CharacterUpdate,
    Entity,
    Interaction,
    LocationState,
    SubLocation,
    TaskName,
)
from ewtrain.tasks.character_update import CharacterUpdateInput
from ewtrain.tasks.interaction_gen import InteractionGenInput, InteractionGenTarget
from ewtrain.tasks.location_scenario import LocationScenarioInput, LocationScenarioTarget
from ewtrain.tasks.motivation_update import MotivationUpdateInput, MotivationUpdateTarget
from ewtrain.tasks.next_character import NextCharacterInput, NextCharacterTarget
from ewtrain.tasks.scene_cast import SceneCastInput, SceneCastTarget
from ewtrain.tasks.sections import CastMember, PastScene, PlaceDescription, Role, ScenePlace
from ewtrain.tasks.world_update import WorldUpdateInput, WorldUpdateTarget


@dataclass(frozen=True)
class Specimen:
    title: str
    input: Any
    target: Any


_WORLD = "**Order** The ferry guild sets every toll.\n**Weather** The thaw has come early."
_TOVE = CastMember(
    name="Tove", short_description="Tove mends the ferry's ropes and trusts knots more than people."
)
_PIKE = CastMember(name='Old "Pike" Ansa', short_description="Ansa has steered the ferry for forty years.")
_MOTIVES = ("To leave before the bell.", "To keep the ferry moored.")
_CAST = [_TOVE, _PIKE]
_MOTIVATED = [
    CastMember(name=member.name, short_description=member.short_description, motivation=motive)
    for member, motive in zip(_CAST, _MOTIVES, strict=True)
]
_SCENARIO = "At dusk the last ferry lies ready, and the ice upstream has begun to move."
_FLAT = LocationState(
    description="A plank landing, wet with meltwater.",
    important_entities=[Entity(name="bell", state="hangs by the post, its rope frayed")],
)
_GROUPED = LocationState(
    description="A low house by the water.",
    sub_locations=[
        SubLocation(
            name="loft",
            description="Dry, and full of rope.",
            important_entities=[Entity(name="hatch", state="bolted")],
        )
    ],
)
_LANDING = ScenePlace(name="The landing", state=_FLAT)
_HOUSE = ScenePlace(name="The ferry house", state=_GROUPED)
_NOWHERE = ScenePlace()
_UNRECORDED = ScenePlace(recorded=False)
_TURN_1 = Interaction(
    actors=["Tove"], content="[If he refuses, I walk.] We go now. (she loosens the first knot)"
)
_TURN_1_SEEN = Interaction(actors=["Tove"], content="We go now. (she loosens the first knot)")
_TURN_2 = Interaction(actors=[_PIKE.name], content="(he lays a hand on the rope)\nThe river says no.")
_TURN_3 = Interaction(actors=[ENVIRONMENT], content="Upstream, the ice cracks like a dropped plate.")
_TURN_4 = Interaction(actors=["Tove", _PIKE.name], content="(both look up, and neither speaks)")
_PAST = PastScene(scenario="The toll was raised again.", interactions=[_TURN_1, _TURN_2])
_PAST_EMPTY = PastScene(scenario="The toll was raised again.", interactions=[])
_PAST_SEEN = PastScene(scenario="The toll was raised again.", interactions=[_TURN_1_SEEN, _TURN_2])
_TOVES_ROLE = Role(
    name="Tove",
    profile="**Trade** Ropemaker.\n**Temper** Quick to leave.",
    hidden_tracker="Twice now she stayed when she meant to go.",
    motivation=_MOTIVES[0],
)
_PIKES_ROLE = Role(
    name=_PIKE.name, profile="**Trade** Ferryman.", hidden_tracker=None, motivation=_MOTIVES[1]
)
_UNKNOWN_ROLE = Role(name="Tove", tracked=False)
_UNKNOWN_CAST = [CastMember(name="Tove"), CastMember(name=_PIKE.name)]

_next_shared: dict[str, Any] = {"global_state": _WORLD, "scenario": _SCENARIO, "cast": _MOTIVATED}
_gen_shared: dict[str, Any] = {
    "global_state": _WORLD,
    "scenario": _SCENARIO,
    "cast": _CAST,
    "place": _LANDING,
}

SPECIMENS: dict[TaskName, list[Specimen]] = {
    "scene_cast": [
        Specimen(
            "a next scene",
            SceneCastInput(global_state=_WORLD, characters=_CAST, previous_scene=_PAST),
            SceneCastTarget(has_next_scene=True, involved_characters=["Tove"]),
        ),
        Specimen(
            "the story is over, nothing recorded, another language",
            SceneCastInput(language="fr", global_state=None, characters=_UNKNOWN_CAST, previous_scene=None),
            SceneCastTarget(has_next_scene=False),
        ),
        Specimen(
            "after an empty scene",
            SceneCastInput(global_state=_WORLD, characters=_CAST, previous_scene=_PAST_EMPTY),
            SceneCastTarget(has_next_scene=False),
        ),
    ],
    "location_scenario": [
        Specimen(
            "a place",
            LocationScenarioInput(
                global_state=_WORLD,
                locations=[PlaceDescription(name="The landing", description="A plank landing.")],
                previous_scene=_PAST,
                cast=_CAST,
            ),
            LocationScenarioTarget(location="The landing", scenario=_SCENARIO),
        ),
        Specimen(
            "no place known",
            LocationScenarioInput(global_state=None, locations=[], previous_scene=None, cast=_UNKNOWN_CAST),
            LocationScenarioTarget(location=None, scenario=_SCENARIO),
        ),
        Specimen(
            "after an empty scene, another language",
            LocationScenarioInput(
                language="fr",
                global_state=_WORLD,
                locations=[PlaceDescription(name="The landing", description="A plank landing.")],
                previous_scene=_PAST_EMPTY,
                cast=_CAST,
            ),
            LocationScenarioTarget(location=None, scenario=None),
        ),
    ],
    "motivation_update": [
        Specimen(
            "a place",
            MotivationUpdateInput(
                global_state=_WORLD,
                scenario=_SCENARIO,
                cast=_CAST,
                location=PlaceDescription(name="The landing", description="A plank landing."),
                previous_scene=_PAST_SEEN,
                role=_PIKES_ROLE,
            ),
            MotivationUpdateTarget(motivation="To keep the ferry moored until morning."),
        ),
        Specimen(
            "no place",
            MotivationUpdateInput(
                global_state=None,
                scenario=_SCENARIO,
                cast=_UNKNOWN_CAST,
                location=None,
                previous_scene=None,
                role=_UNKNOWN_ROLE,
            ),
            MotivationUpdateTarget(motivation="To be gone."),
        ),
        Specimen(
            "places not recorded, after an empty scene, another language",
            MotivationUpdateInput(
                language="fr",
                global_state=None,
                scenario=_SCENARIO,
                cast=_UNKNOWN_CAST,
                location=None,
                places_recorded=False,
                previous_scene=_PAST_EMPTY,
                role=_UNKNOWN_ROLE,
            ),
            MotivationUpdateTarget(motivation="To be gone."),
        ),
    ],
    "next_character": [
        Specimen(
            "live turns",
            NextCharacterInput(
                **_next_shared, place=_LANDING, prior=[_TURN_1, _TURN_2], live=[_TURN_3, _TURN_4]
            ),
            NextCharacterTarget(actors=[SCENE_END]),
        ),
        Specimen(
            "the first turn, no place",
            NextCharacterInput(**_next_shared, place=_NOWHERE, prior=[], live=[]),
            NextCharacterTarget(actors=["Tove", _PIKE.name]),
        ),
        Specimen(
            "a grouped place, another language",
            NextCharacterInput(language="fr", **_next_shared, place=_HOUSE, prior=[_TURN_1], live=[]),
            NextCharacterTarget(actors=[ENVIRONMENT]),
        ),
        Specimen(
            "nothing recorded",
            NextCharacterInput(
                global_state=None,
                scenario=_SCENARIO,
                cast=_UNKNOWN_CAST,
                place=_UNRECORDED,
                prior=[],
                live=[],
            ),
            NextCharacterTarget(actors=[ENVIRONMENT]),
        ),
    ],
    "world_update": [
        Specimen(
            "a flat place changes",
            WorldUpdateInput(**_next_shared, place=_LANDING, prior=[_TURN_1, _TURN_2, _TURN_3]),
            WorldUpdateTarget(location_state=_FLAT),
        ),
        Specimen(
            "the world and a grouped place change",
            WorldUpdateInput(**_next_shared, place=_HOUSE, prior=[_TURN_3]),
            WorldUpdateTarget(global_state=_WORLD, location_state=_GROUPED),
        ),
        Specimen(
            "nothing changes, no place, another language",
            WorldUpdateInput(language="fr", **_next_shared, place=_NOWHERE, prior=[_TURN_1]),
            WorldUpdateTarget(),
        ),
        Specimen(
            "nothing recorded",
            WorldUpdateInput(
                global_state=None, scenario=_SCENARIO, cast=_UNKNOWN_CAST, place=_UNRECORDED, prior=[_TURN_3]
            ),
            WorldUpdateTarget(),
        ),
    ],
    "interaction_gen": [
        Specimen(
            "a character, with turns of its own",
            InteractionGenInput(
                **_gen_shared,
                actors=["Tove"],
                roles=[_TOVES_ROLE],
                prior=[_TURN_1, _TURN_2],
                live=[_TURN_3, _TURN_1, _TURN_1, _TURN_2],
            ),
            InteractionGenTarget(content="[So be it.] Then I swim. (she steps onto the planks)"),
        ),
        Specimen(
            "a group",
            InteractionGenInput(
                **_gen_shared,
                actors=["Tove", _PIKE.name],
                roles=[_TOVES_ROLE, _PIKES_ROLE],
                prior=[],
                live=[_TURN_1],
            ),
            InteractionGenTarget(content="(both reach for the bell rope)"),
        ),
        Specimen(
            "Environment",
            InteractionGenInput(**_gen_shared, actors=[ENVIRONMENT], roles=[], prior=[_TURN_2], live=[]),
            InteractionGenTarget(content="The bell swings once in the wind."),
        ),
        Specimen(
            "a grouped place, another language",
            InteractionGenInput(
                language="fr",
                **(_gen_shared | {"place": _HOUSE}),
                actors=["Tove"],
                roles=[_TOVES_ROLE],
                prior=[],
                live=[],
            ),
            InteractionGenTarget(content="(she waits)"),
        ),
        Specimen(
            "no place",
            InteractionGenInput(
                **(_gen_shared | {"place": _NOWHERE}), actors=["Tove"], roles=[_TOVES_ROLE], prior=[], live=[]
            ),
            InteractionGenTarget(content="(she waits)"),
        ),
        Specimen(
            "nothing recorded",
            InteractionGenInput(
                global_state=None,
                scenario=_SCENARIO,
                cast=_UNKNOWN_CAST,
                place=_UNRECORDED,
                actors=["Tove"],
                roles=[_UNKNOWN_ROLE],
                prior=[],
                live=[],
            ),
            InteractionGenTarget(content="Well?"),
        ),
    ],
    "character_update": [
        Specimen(
            "a changed profile",
            CharacterUpdateInput(scenario=_SCENARIO, role=_TOVES_ROLE, interactions=[_TURN_1, _TURN_2]),
            CharacterUpdate(
                hidden_tracker=None,
                profile="**Trade** Ropemaker.\n**Temper** She stays.",
                short_description="Tove stayed.",
            ),
        ),
        Specimen(
            "an unchanged profile, an empty scene, another language",
            CharacterUpdateInput(language="fr", scenario=_SCENARIO, role=_PIKES_ROLE, interactions=[]),
            CharacterUpdate(hidden_tracker="She may yet go.", short_description="Ansa waits."),
        ),
        Specimen(
            "nothing recorded",
            CharacterUpdateInput(scenario=_SCENARIO, role=_UNKNOWN_ROLE, interactions=[_TURN_2]),
            CharacterUpdate(hidden_tracker=None, short_description="Tove is here."),
        ),
    ],
}
