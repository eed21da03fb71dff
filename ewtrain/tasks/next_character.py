"""`next_character` (World Model): who acts next, turn by turn, or that the scene ends. EW Table 29."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ewtrain.chat import assistant, user
from ewtrain.replay import StoryState
from ewtrain.story import ENVIRONMENT, SCENE_END, Interaction, ScenePlan, StoryModel
from ewtrain.tasks import sections
from ewtrain.tasks.answers import ParseError, dumps, loads, read_names
from ewtrain.tasks.base import Prompt, Task, TaskInput, names_schema
from ewtrain.tasks.sections import CastMember, ScenePlace


class NextCharacterInput(TaskInput):
    """`prior`: the scene's interactions before this segment; `live`: those of the segment so far."""

    global_state: str | None
    scenario: str
    cast: list[CastMember]
    place: ScenePlace
    prior: list[Interaction]
    live: list[Interaction]


class NextCharacterTarget(StoryModel):
    """Cast members in cast order, `["Environment"]`, or `["<SCENE_END>"]`."""

    actors: list[str]


class NextCharacter(Task[NextCharacterInput, NextCharacterTarget]):
    name = "next_character"
    adapter = "world_model"
    Input = NextCharacterInput

    def observe(
        self, state: StoryState, plan: ScenePlan, prior: Sequence[Interaction], live: Sequence[Interaction]
    ) -> NextCharacterInput:
        """Return the Input of the decision after `live`, under the segment's state."""
        return NextCharacterInput(
            language=state.book.language,
            global_state=state.global_state,
            scenario=plan.scenario,
            cast=sections.described(state.characters, plan.cast, plan.motivations),
            place=sections.place_of(state, plan.location),
            prior=list(prior),
            live=list(live),
        )

    def _prompt(self, inp: NextCharacterInput, wording: int, drop: int) -> Prompt:
        moved = sections.moved_from_live(inp.prior, inp.live, drop, lambda _: True)
        allowed = [*(member.name for member in inp.cast), ENVIRONMENT, SCENE_END]
        messages = self._opening(
            *sections.stage(inp.global_state, inp.scenario, inp.cast, inp.place, motivations=True),
            sections.story_so_far([*inp.prior, *inp.live[:moved]], drop),
            self._instructions(wording, inp.language, allowed_names=dumps(allowed)),
        )
        for interaction in inp.live[moved:]:
            messages.append(assistant(self.format_target(NextCharacterTarget(actors=interaction.actors))))
            messages.append(user(sections.line(interaction)))
        return Prompt(messages, omitted=drop, moved_to_prior=moved)

    def _droppable(self, inp: NextCharacterInput) -> int:
        return sections.all_but_newest([*inp.prior, *inp.live])

    def schema(self, inp: NextCharacterInput) -> dict[str, Any]:
        cast = [member.name for member in inp.cast]
        return {"anyOf": [names_schema(cast), names_schema([ENVIRONMENT, SCENE_END], most=1)]}

    def format_target(self, target: NextCharacterTarget) -> str:
        return dumps(target.actors)

    def answers(self, inp: NextCharacterInput, target: NextCharacterTarget) -> list[str]:
        live = [NextCharacterTarget(actors=interaction.actors) for interaction in inp.live]
        return [self.format_target(decision) for decision in [*live, target]]

    def parse(self, completion: str, inp: NextCharacterInput) -> NextCharacterTarget:
        cast = [member.name for member in inp.cast]
        actors = read_names(loads(completion), [*cast, ENVIRONMENT, SCENE_END], "the list")
        if len(actors) > 1 and (ENVIRONMENT in actors or SCENE_END in actors):
            raise ParseError("not_allowed", f"{ENVIRONMENT} and {SCENE_END} stand alone")
        return NextCharacterTarget(actors=sorted(actors, key=cast.index) if len(actors) > 1 else actors)
