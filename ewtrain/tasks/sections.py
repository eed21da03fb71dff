"""How states and interactions are written in a prompt: the blocks and fixed lines, byte for byte.

Blocks that several tasks show are made here once, so that neighbouring prompts share their prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ewtrain.replay import StoryState
from ewtrain.story import CharacterState, Interaction, LocationState, Place, PreviousScene, StoryModel
from ewtrain.tasks.answers import dumps

SEGMENT_START = "===Segment Start==="
NOT_RECORDED = "(Not recorded.)"
STORY_BEGINS = "(The story begins here.)"
NOTHING_VISIBLE = "(Nothing visible has happened since.)"
NOTHING_YET = "(Nothing has happened yet.)"
NOTHING_SEEN = "(Nothing visible happened.)"
NO_PLACE = "(No particular place.)"
EMPTY_TRACKER = "(Empty.)"
ENVIRONMENT_ROLE = "(The Environment has no profile, tracker or motivation.)"


class ScenePlace(StoryModel):
    """Where a scene plays. `recorded=False`: the source knows no places; `name=None`: it has none."""

    name: str | None = None
    state: LocationState | None = None
    recorded: bool = True


class PastScene(StoryModel):
    """A previous scene as one reader may see it."""

    scenario: str
    interactions: list[Interaction]

    @classmethod
    def of(cls, scene: PreviousScene, seen: list[Interaction] | None = None) -> PastScene:
        """Return the scene with its interactions, or with those of `seen`."""
        interactions = scene.interactions if seen is None else seen
        return cls.model_construct(scenario=scene.scenario, interactions=interactions)


class CastMember(StoryModel):
    """A character as others know it, and why it comes, where the World Model reads it."""

    name: str
    short_description: str | None = None
    motivation: str | None = None


class Role(StoryModel):
    """What an actor knows of itself. `tracked=False`: the source keeps no tracker."""

    name: str
    profile: str | None = None
    hidden_tracker: str | None = None
    tracked: bool = True
    motivation: str | None = None


def line(interaction: Interaction) -> str:
    """Return an interaction as one line: its actors as JSON, a colon, its line breaks as one space each."""
    content = interaction.content
    if not content.isprintable():
        content = " ".join(piece for piece in map(str.strip, content.splitlines()) if piece)
    return f"{dumps(interaction.actors)}: {content}"


def lines(interactions: Iterable[Interaction]) -> str:
    return "\n".join(map(line, interactions))


def history(interactions: Sequence[Interaction], drop: int, *, over: bool) -> str:
    """Return interactions a line each; the oldest `drop` give way to a line that counts them.

    `over`: the scene they belong to is finished.
    """
    kept = lines(interactions[drop:])
    if drop:
        omitted = f"({drop} earlier interactions omitted)"
        return f"{omitted}\n{kept}" if kept else omitted
    return kept or (NOTHING_SEEN if over else NOTHING_YET)


def block(title: str, body: str | None) -> str:
    return f"# {title}\n{body if body is not None else NOT_RECORDED}"


def world(global_state: str | None) -> str:
    return block("World", global_state)


def people(title: str, members: Sequence[CastMember], *, motivations: bool = False) -> str:
    """Return every member's short description in order, with motivations for the World Model."""
    entries = []
    for member in members:
        entry = f"## {member.name}\n{member.short_description or NOT_RECORDED}"
        entries.append(f"{entry}\nMotivation: {member.motivation or NOT_RECORDED}" if motivations else entry)
    return block(title, "\n\n".join(entries) or None)


def place(where: ScenePlace) -> str:
    """Return the scene's place and its state, the state as the JSON that `world_update` answers with."""
    if not where.recorded:
        return block("Location", None)
    if where.name is None:
        return block("Location", NO_PLACE)
    state = dumps(where.state.model_dump(exclude_none=True)) if where.state else NOT_RECORDED
    return block("Location", f"{where.name}\n{state}")


def previous_scene(scene: PastScene | None, drop: int) -> str:
    if scene is None:
        return block("Previous scene", STORY_BEGINS)
    return block("Previous scene", f"{scene.scenario}\n{history(scene.interactions, drop, over=True)}")


def role(members: Sequence[Role], *, motivations: bool) -> str:
    """Return each acting member's own profile, tracker and motivation; a fixed line for Environment."""
    entries = []
    for member in members:
        tracker = member.hidden_tracker or (EMPTY_TRACKER if member.tracked else NOT_RECORDED)
        entry = f"## {member.name}\nProfile:\n{member.profile or NOT_RECORDED}\nHidden tracker:\n{tracker}"
        entries.append(f"{entry}\nMotivation:\n{member.motivation or NOT_RECORDED}" if motivations else entry)
    return block("Your role", "\n\n".join(entries) or ENVIRONMENT_ROLE)


def story_so_far(interactions: Sequence[Interaction], drop: int, *, over: bool = False) -> str:
    return block("Story so far", history(interactions, drop, over=over))


class PlaceDescription(StoryModel):
    name: str
    description: str

    @classmethod
    def of(cls, name: str, where: Place) -> PlaceDescription:
        """Return a place's current top-level description, or its standing one where the state has none."""
        current = where.state.description if where.state else ""
        return cls(name=name, description=current or where.description)


def places(title: str, descriptions: Sequence[PlaceDescription]) -> str:
    return block(title, "\n\n".join(f"## {p.name}\n{p.description}" for p in descriptions) or None)


def next_place(where: PlaceDescription | None, recorded: bool) -> str:
    if where is None:
        return block("Next location", NO_PLACE if recorded else None)
    return block("Next location", f"{where.name}\n{where.description}")


def stage(
    global_state: str | None,
    scenario: str,
    cast: Sequence[CastMember],
    where: ScenePlace,
    *,
    motivations: bool,
) -> list[str]:
    """Return the blocks with which every task within a scene begins."""
    return [
        world(global_state),
        block("Scenario", scenario),
        people("Cast", cast, motivations=motivations),
        place(where),
    ]


def described(
    characters: Mapping[str, CharacterState],
    names: Iterable[str],
    motivations: Mapping[str, str] | None = None,
) -> list[CastMember]:
    """Return people as others know them at this point, in the order of `names`."""
    return [
        CastMember(
            name=name,
            short_description=characters[name].short_description,
            motivation=motivations.get(name) if motivations else None,
        )
        for name in names
    ]


def place_of(state: StoryState, location: str | None) -> ScenePlace:
    """Return where a scene plays; unrecorded if its source knows no places at all."""
    recorded = location is not None or bool(state.locations) or "location_scenario" in state.provides
    return ScenePlace(name=location, state=state.location_state(location), recorded=recorded)


def role_of(state: StoryState, name: str, motivation: str | None) -> Role:
    own = state.characters[name]
    return Role(
        name=name,
        profile=own.profile,
        hidden_tracker=own.hidden_tracker,
        tracked="character_update" in state.provides,
        motivation=motivation,
    )


def moved_from_live(
    prior: Sequence[Interaction],
    live: Sequence[Interaction],
    drop: int,
    is_answer: Callable[[Interaction], bool],
) -> int:
    """Return how many live interactions stand in the story so far once the `drop` oldest of all are gone.

    A first kept answer must not stand right behind the gap: it was given with the interaction before it in
    view. Then it moves, too, and is what the next one sees.
    """
    moved = max(0, drop - len(prior))
    at_gap = drop > 0 and drop >= len(prior) and moved < len(live)
    return moved + (at_gap and is_answer(live[moved]))


def all_but_newest(interactions: Sequence[Interaction]) -> int:
    """Return how many interactions may be dropped to fit."""
    return max(0, len(interactions) - 1)
