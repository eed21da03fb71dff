"""A story's state at any point is a replay (contract sections 1 and 2, "Segments")."""

from __future__ import annotations

from hypothesis import given
from stories import timelines

from ewtrain.replay import StoryState, StyleExamples, finish_scene, play_segments, state_before
from ewtrain.story import CharacterUpdate, Entity, LocationState, Timeline


@given(timelines())
def test_the_last_change_written_before_a_point_is_the_state_at_it(timeline: Timeline) -> None:
    for t in range(len(timeline.scenes) + 1):
        state = state_before(timeline, t)
        worlds = [timeline.initial_global_state]
        places = {place.name: place.initial for place in timeline.locations}
        people = {person.name: person.initial.model_dump() for person in timeline.characters}
        for scene in timeline.scenes[:t]:
            for interaction in scene.interactions:
                if interaction.global_state is not None:
                    worlds.append(interaction.global_state)
                if interaction.location_state is not None:
                    places[scene.location] = interaction.location_state
            for name, update in scene.character_updates.items():
                people[name] |= {
                    "hidden_tracker": update.hidden_tracker,
                    "short_description": update.short_description,
                }
                if update.profile is not None:
                    people[name]["profile"] = update.profile
        assert state.global_state == worlds[-1]
        assert {name: place.state for name, place in state.locations.items()} == places
        assert {name: person.model_dump() for name, person in state.characters.items()} == people
        previous = timeline.scenes[t - 1].as_previous() if t else None
        assert state.previous_scene == previous


@given(timelines())
def test_segments_cut_after_each_change_and_the_last_one_ends_the_scene(timeline: Timeline) -> None:
    state = StoryState.at_start(timeline)
    for scene in timeline.scenes:
        segments = list(play_segments(state, scene))
        changing = [i for i, interaction in enumerate(scene.interactions) if interaction.changes_world]
        assert len(segments) == len(changing) + 1
        assert [segment.end for segment in segments[:-1]] == [i + 1 for i in changing]
        assert [segment.start for segment in segments] == [0, *(i + 1 for i in changing)]
        assert segments[-1].end == len(scene.interactions)
        assert [segment.ends_scene for segment in segments] == [False] * len(changing) + [True]
        assert [segment.index for segment in segments] == list(range(len(segments)))
        finish_scene(state, scene)


@given(timelines())
def test_a_segments_decisions_see_the_state_before_its_change(timeline: Timeline) -> None:
    state = StoryState.at_start(timeline)
    current = timeline.initial_global_state
    for scene in timeline.scenes:
        for segment in play_segments(state, scene):
            assert state.global_state == current
            for interaction in scene.interactions[segment.start : segment.end]:
                current = interaction.global_state or current
        finish_scene(state, scene)


@given(timelines())
def test_a_replay_shares_states_instead_of_copying_them(timeline: Timeline) -> None:
    state = StoryState.at_start(timeline)
    for scene in timeline.scenes:
        for _ in play_segments(state, scene):
            pass
        finish_scene(state, scene)
        written = [i.location_state for i in scene.interactions if i.location_state]
        if written:
            assert state.location_state(scene.location) is written[-1]


def test_writing_a_state_equal_to_the_current_one_is_no_change() -> None:
    timeline = Timeline.model_validate(
        {
            "book": {"book_id": "b", "title": "T", "author": "A"},
            "characters": [{"name": "Ada", "initial": {"profile": "p", "short_description": "s"}}],
            "locations": [
                {
                    "name": "Quay",
                    "description": "d",
                    "initial": {"description": "x", "important_entities": []},
                }
            ],
            "initial_global_state": "g",
            "scenes": [{"index": 0, "scenario": "s", "cast": ["Ada"], "interactions": []}],
        }
    )
    state = StoryState.at_start(timeline)
    same = LocationState(description="x", important_entities=[])
    assert state.write_world("Quay", "g", same) is False
    other = LocationState(description="x", important_entities=[Entity(name="rope", state="cut")])
    assert state.write_world("Quay", None, other) is True
    assert state.location_state("Quay") == other and state.global_state == "g"
    assert state.locations["Quay"].description == "d"
    state.write_characters({"Ada": CharacterUpdate(hidden_tracker=None, short_description="s2")})
    assert state.characters["Ada"].profile == "p" and state.characters["Ada"].short_description == "s2"


@given(timelines(min_scenes=3, max_turns=9))
def test_style_examples_are_at_most_ten_turns_spoken_alone_in_story_order(timeline: Timeline) -> None:
    style = StyleExamples(limit=3)
    style.add(timeline.scenes)
    for person in timeline.characters:
        alone = [
            turn.content for scene in timeline.scenes for turn in scene.turns if turn.actors == [person.name]
        ]
        picked = style.pick(person.name)
        assert len(picked) == min(3, len(alone))
        assert picked == alone or (picked[0] == alone[0] and picked[-1] == alone[-1])
    assert StyleExamples().limit == 10
