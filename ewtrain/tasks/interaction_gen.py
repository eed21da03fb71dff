"""`interaction_gen` (Character Agent): the next turn of a character, a group or Environment. EW Tables 29-30."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ewtrain.chat import Message, assistant, user
from ewtrain.content import control_strings, visible_to
from ewtrain.replay import StoryState
from ewtrain.story import ENVIRONMENT, Interaction, ScenePlan, StoryModel
from ewtrain.tasks import sections
from ewtrain.tasks.answers import ParseError, writable
from ewtrain.tasks.base import Prompt, Task, TaskInput
from ewtrain.tasks.sections import CastMember, Role, ScenePlace

_QUOTED = r'"(?:[^"\\\n]|\\.)*"'
_SPEAKS_FOR = re.compile(rf"^[ \t]*\[\s*{_QUOTED}(?:\s*,\s*{_QUOTED})*\s*\]\s*:", re.MULTILINE)


class InteractionGenInput(TaskInput):
    """`prior` and `live` as these actors may see them; turns of exactly these actors are their own."""

    global_state: str | None
    scenario: str
    cast: list[CastMember]
    place: ScenePlace
    actors: list[str]
    roles: list[Role]
    prior: list[Interaction]
    live: list[Interaction]


class InteractionGenTarget(StoryModel):
    content: str


class InteractionGen(Task[InteractionGenInput, InteractionGenTarget]):
    name = "interaction_gen"
    adapter = "character_agent"
    Input = InteractionGenInput

    def observe(
        self,
        state: StoryState,
        plan: ScenePlan,
        actors: Sequence[str],
        prior: Sequence[Interaction],
        live: Sequence[Interaction],
    ) -> InteractionGenInput:
        """Return the Input of an actor set's turn after `live`; both histories come raw and leave as seen."""
        people = [name for name in actors if name != ENVIRONMENT]
        return InteractionGenInput(
            language=state.book.language,
            global_state=state.global_state,
            scenario=plan.scenario,
            cast=sections.described(state.characters, plan.cast),
            place=sections.place_of(state, plan.location),
            actors=list(actors),
            roles=[sections.role_of(state, name, plan.motivations.get(name)) for name in people],
            prior=visible_to(actors, prior),
            live=visible_to(actors, live),
        )

    def _prompt(self, inp: InteractionGenInput, wording: int, drop: int) -> Prompt:
        def is_own(interaction: Interaction) -> bool:
            return interaction.actors == inp.actors

        from_live = sections.moved_from_live(inp.prior, inp.live, drop, is_own)
        num_moved = sum(map(is_own, inp.live[:from_live]))
        opening = self._opening(
            *sections.stage(inp.global_state, inp.scenario, inp.cast, inp.place, motivations=False),
            self._wording(inp, wording),
            sections.role(inp.roles, motivations=True),
            sections.story_so_far([*inp.prior, *inp.live[:from_live]], drop),
            sections.SEGMENT_START,
        )
        messages: list[Message] = opening[:-1]
        shown: list[Interaction] = []
        first = opening[-1]["content"]
        for interaction in inp.live[from_live:]:
            if not is_own(interaction):
                shown.append(interaction)
                continue
            messages += [user(self._shown(first, shown)), assistant(interaction.content)]
            first, shown = "", []
        messages.append(user(self._shown(first, shown)))
        return Prompt(messages, omitted=drop, moved_to_prior=num_moved)

    def _shown(self, first: str, shown: list[Interaction]) -> str:
        """Return a user turn: what became visible since; the first one stands below the opening."""
        if first:
            return "\n".join([first, *map(sections.line, shown)])
        return sections.lines(shown) or sections.NOTHING_VISIBLE

    def _wording(self, inp: InteractionGenInput, wording: int) -> str:
        if inp.actors == [ENVIRONMENT]:
            return self._instructions(wording, inp.language, "interaction_gen_environment")
        if len(inp.actors) == 1:
            return self._instructions(wording, inp.language, actor=inp.actors[0])
        together = f"{', '.join(inp.actors[:-1])} and {inp.actors[-1]}"
        return self._instructions(wording, inp.language, "interaction_gen_group", actor=together)

    def _droppable(self, inp: InteractionGenInput) -> int:
        return sections.all_but_newest([*inp.prior, *inp.live])

    def schema(self, inp: InteractionGenInput) -> dict[str, Any] | None:
        return None

    def format_target(self, target: InteractionGenTarget) -> str:
        return target.content

    def answers(self, inp: InteractionGenInput, target: InteractionGenTarget) -> list[str]:
        own = [interaction.content for interaction in inp.live if interaction.actors == inp.actors]
        return [*own, self.format_target(target)]

    def parse(self, completion: str, inp: InteractionGenInput) -> InteractionGenTarget:
        content = writable(completion.strip())
        if not content:
            raise ParseError("wrong_shape", "the turn is empty")
        if found := control_strings(content):
            raise ParseError("not_allowed", f"the turn holds the control string {found[0]!r}")
        if _SPEAKS_FOR.search(content):
            raise ParseError("not_allowed", "a line speaks for someone by name")
        return InteractionGenTarget(content=content)
