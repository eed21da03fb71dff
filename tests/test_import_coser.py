"""CoSER's book files become timelines that hold, and nothing of them vanishes unreported."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from data_builders.importers.coser import import_coser
from data_builders.importers.report import ImportedBook
from ewtrain.errors import ConfigError, DataError
from ewtrain.story import CharacterState, Timeline
from ewtrain.timeline_file import check_timeline, read_timeline, write_timeline

ROOT = Path(__file__).parent.parent
COSER = Path(os.environ.get("EWTRAIN_TRIAL_DATA", ROOT / "../shared/data")) / "coser"
with_trial_data = pytest.mark.skipif(
    not (COSER / "final_Othello.json").is_file(),
    reason=f"no trial data at {COSER}; set EWTRAIN_TRIAL_DATA",
)


def says(character: str, message: Any = "Good evening.") -> dict[str, Any]:
    return {"character": character, "message": message}


def wants(name: str, motivation: Any = "To find the lamp.") -> dict[str, Any]:
    return {"name": name, "motivation": motivation}


def talk(key_characters: list[Any], dialogues: list[Any], **changed: Any) -> dict[str, Any]:
    return {
        "scenario": "A boathouse at dusk.",
        "topic": "The missing lamp.",
        "key_characters": key_characters,
        "dialogues": dialogues,
        **changed,
    }


def plot(*conversations: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {
        "text": "It was dusk.",
        "summary": "Mara looks for a lamp.",
        "chapter": "One",
        "key_characters": [],
        "conversation": list(conversations),
        **changed,
    }


class Shelf:
    """Writes books to a folder of the test's own, and imports them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, *plots: Any, name: str = "final_Lamp.json", **other: Any) -> Path:
        path = self.folder / name
        # ASCII escapes, as CoSER's writer may leave them: half a character survives only so.
        path.write_text(json.dumps({"plots": list(plots), **other}), encoding="utf-8")
        return path

    def imported(self, *plots: Any, options: dict[str, Any] | None = None, **other: Any) -> ImportedBook:
        book = import_coser(self.put(*plots, **other), **(options or {}))
        assert check_timeline(book.timeline).faults == []
        return book


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def casts(timeline: Timeline) -> list[list[str]]:
    return [scene.cast for scene in timeline.scenes]


def turns(timeline: Timeline, scene: int = 0) -> list[tuple[list[str], str]]:
    return [(turn.actors, turn.content) for turn in timeline.scenes[scene].interactions]


def counts(book: ImportedBook, kind: str) -> dict[str, int]:
    """Return what the report counts of a kind, less what every book of these tests sets aside."""
    tallies = getattr(book.report, kind)
    return {reason: tally.count for reason, tally in tallies.items() if reason not in ("topic", "plot_text")}


# The real files.


@with_trial_data
@pytest.mark.parametrize("name", ["final_Othello.json", "extracted_Othello.json"])
def test_both_files_of_othello_give_all_their_conversations_and_messages(name: str) -> None:
    report = import_coser(COSER / name).report
    assert report.read == {"plots": 10, "conversations": 14, "messages": 137}
    assert report.written == {
        "scenes": 14,
        "interactions": 137,
        "interactions of Environment": 15,
        "interactions of groups": 0,
        "characters": 10,
        "places in casts": 34,
        "motivations": 31,
    }


@with_trial_data
def test_the_final_othello_reports_exactly_what_it_set_aside_changed_and_added() -> None:
    report = import_coser(COSER / "final_Othello.json").report
    assert {reason: tally.count for reason, tally in report.set_aside.items()} == {
        "topic": 14,
        "plot_text": 10,
        "plot_character_description": 38,
        "plot_character_experience": 38,
        "whole_book_profile": 9,
    }
    assert {reason: tally.count for reason, tally in report.changed.items()} == {"chapter_says_none": 6}
    assert {reason: tally.count for reason, tally in report.added.items()} == {"speaker_added_to_cast": 3}
    assert {reason: tally.count for reason, tally in report.noted.items()} == {"no_motivation": 3}
    assert report.added["speaker_added_to_cast"].examples == (
        "plots[0].conversation[0].dialogues[8]: Brabantio",
        "plots[1].conversation[0].dialogues[5]: Brabantio",
        "plots[1].conversation[0].dialogues[9]: Officer",
    )
    assert report.warnings == ["the plot chapter is empty or missing in 8 of 10 places"]
    assert "split_plot_index" in report.keys_not_read


@with_trial_data
def test_the_extracted_othello_has_no_profiles_and_bracketed_motivations() -> None:
    book = import_coser(COSER / "extracted_Othello.json")
    assert "whole_book_profile" not in book.report.set_aside
    assert book.report.noted["motivation_in_brackets"].count == 4
    assert book.timeline.scenes[0].motivations["Iago"].startswith("[seeking to exploit Roderigo's")
    assert "Duke" in [character.name for character in book.timeline.characters]
    assert {"chapter_beginnings", "fail_to_parse_responses"} <= set(book.report.keys_not_read)


@with_trial_data
def test_othello_keeps_its_order_and_every_word_of_its_messages() -> None:
    source = json.loads((COSER / "final_Othello.json").read_text(encoding="utf-8"))
    timeline = import_coser(COSER / "final_Othello.json").timeline
    told = [(p, c) for p in source["plots"] for c in p["conversation"]]
    assert len(told) == len(timeline.scenes)
    for scene, (source_plot, source_talk) in zip(timeline.scenes, told, strict=True):
        assert [i.content for i in scene.interactions] == [
            d["message"].strip() for d in source_talk["dialogues"]
        ]
        assert [i.actors for i in scene.interactions] == [[d["character"]] for d in source_talk["dialogues"]]
        assert scene.motivations == {m["name"]: m["motivation"] for m in source_talk["key_characters"]}
        assert (scene.scenario, scene.summary) == (source_talk["scenario"], source_plot["summary"])
    assert [scene.chapter for scene in timeline.scenes] == ["Act I, Scene 1", "Act I, Scene 2", *[None] * 12]
    assert [character.name for character in timeline.characters] == [
        "Iago", "Roderigo", "Brabantio", "Othello", "Officer",
        "Desdemona", "Duke of Venice", "Cassio", "Lodovico", "Emilia",
    ]  # fmt: skip


@with_trial_data
@pytest.mark.parametrize("profiles_as_initial", [False, True])
def test_othello_is_a_timeline_without_faults_and_survives_its_file(
    tmp_path: Path, profiles_as_initial: bool
) -> None:
    timeline = import_coser(COSER / "final_Othello.json", profiles_as_initial=profiles_as_initial).timeline
    report = check_timeline(timeline)
    assert report.faults == []
    assert [notice.path for notice in report.notices] == [f"scenes[{i}].motivations" for i in (0, 1, 1)]
    write_timeline(timeline, tmp_path / "othello.timeline.json")
    assert read_timeline(tmp_path / "othello.timeline.json") == timeline


@with_trial_data
def test_othellos_profiles_become_initial_ones_only_when_asked_for_and_then_as_spoilers() -> None:
    source = json.loads((COSER / "final_Othello.json").read_text(encoding="utf-8"))
    plain = import_coser(COSER / "final_Othello.json")
    assert {character.initial for character in plain.timeline.characters} == {CharacterState()}

    spoiled = import_coser(COSER / "final_Othello.json", profiles_as_initial=True)
    profiles = {c.name: c.initial.profile for c in spoiled.timeline.characters}
    assert profiles.pop("Officer") is None
    assert profiles == {n: d["profile"].strip() for n, d in source["character_datasets"].items()}
    assert spoiled.report.added["profile_as_initial"].count == 9
    assert spoiled.report.noted["no_profile"].examples == ("Officer",)
    assert "whole_book_profile" not in spoiled.report.set_aside
    assert "SPOILERS" in str(spoiled.report) and "SPOILERS" not in str(plain.report)
    assert any("spoilers" in warning for warning in spoiled.report.warnings)


@with_trial_data
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("coser/example_test_set.json", "a list of 3"),
        ("coser/sft_sharegpt_othello_lear.json.gz", "a list of 434"),
        ("coser/gca_evaluation_gpt-4o.json", "'scores', 'cases'"),
        ("novels/BAD_scarlet_letter_download_error.txt", "HTML"),
        ("novels/pg_metamorphosis.txt", "not JSON"),
        ("plays/othello.xml", "XML"),
        ("coser", "a folder"),
    ],
)
def test_other_trial_files_are_refused_by_what_they_are(name: str, wrong: str) -> None:
    with pytest.raises(DataError) as refused:
        import_coser(COSER.parent / name)
    assert wrong in str(refused.value)


# What a timeline says, on small books of our own.


def test_each_conversation_becomes_a_scene_in_the_order_of_plots_and_conversations(shelf: Shelf) -> None:
    book = shelf.imported(
        plot(
            talk([wants("Mara")], [says("Mara", "One.")], scenario="First."),
            talk([wants("Joss")], [says("Joss", "Two.")], scenario="Second."),
        ),
        plot(
            talk([wants("Mara")], [says("Mara", "Three.")], scenario="Third."),
            chapter="Two",
            summary="Later.",
        ),
    )
    assert [(s.index, s.scenario, s.chapter, s.summary) for s in book.timeline.scenes] == [
        (0, "First.", "One", "Mara looks for a lamp."),
        (1, "Second.", "One", "Mara looks for a lamp."),
        (2, "Third.", "Two", "Later."),
    ]


def test_the_timeline_provides_three_tasks_and_invents_no_state(shelf: Shelf) -> None:
    timeline = shelf.imported(
        plot(
            talk([wants("Mara")], [says("Mara")]),
            key_characters=[
                {"name": "Mara", "description": "A diver who drowns.", "experience": "She drowns."}
            ],
        ),
        character_datasets={"Mara": {"profile": "She drowns in the end."}},
    ).timeline
    assert timeline.provides == ["motivation_update", "next_character", "interaction_gen"]
    assert timeline.locations == [] and timeline.initial_global_state is None
    assert [c.initial for c in timeline.characters] == [CharacterState()]
    assert all(not s.character_updates and s.location is None for s in timeline.scenes)
    assert "drown" not in timeline.model_dump_json()


def test_the_report_says_in_words_what_the_source_lacks_and_what_was_set_aside(shelf: Shelf) -> None:
    report = shelf.imported(
        plot(talk([wants("Mara")], [says("Mara"), says("Joss"), says("Mara", " ")]))
    ).report
    text = str(report)
    for said in (
        '"Lamp" by Unknown, as lamp',
        "1 plots, 1 conversations, 3 messages",
        "no rows for character_update",
        "no rows for location_scenario and world_update",
        "no rows for scene_cast",
        "1 x empty messages\n        plots[0].conversation[0].dialogues[2]: Mara",
        "1 x cast members whose motivation the source lacks",
    ):
        assert said in text


def test_a_tally_counts_all_and_shows_three(shelf: Shelf) -> None:
    book = shelf.imported(plot(talk([wants("Mara")], [says("Mara"), *[says("Mara", "")] * 5])))
    tally = book.report.set_aside["empty_message"]
    assert tally.count == 5
    assert tally.examples == tuple(f"plots[0].conversation[0].dialogues[{i}]: Mara" for i in (1, 2, 3))


@pytest.mark.parametrize(
    ("empty", "warned"), [(1, []), (2, ["the motivation is empty or missing in 2 of 3 places"])]
)
def test_a_field_that_is_empty_in_more_than_half_of_its_places_is_warned_of(
    shelf: Shelf, empty: int, warned: list[str]
) -> None:
    names = ["Mara", "Joss", "Ilse"]
    members = [wants(name, "" if i < empty else "To rest.") for i, name in enumerate(names)]
    assert shelf.imported(plot(talk(members, [says("Mara")]))).report.warnings == warned


def test_marks_and_edges_of_a_message_stay_but_for_the_white_space_around_it(shelf: Shelf) -> None:
    content = "[Not again.] (puts the lamp [brass] down)  Who's there?\n  Speak!"
    book = shelf.imported(plot(talk([wants("Mara")], [says("Mara", f" {content}\n"), says("Mara", content)])))
    assert turns(book.timeline) == [(["Mara"], content)] * 2


# Speakers and casts.


def test_environment_acts_alone_and_is_never_cast(shelf: Shelf) -> None:
    book = shelf.imported(
        plot(
            talk(
                [wants("Mara"), wants("Environment")],
                [says("Environment", "Rain."), says(" environment", "More rain."), says("Mara")],
            )
        )
    )
    assert casts(book.timeline) == [["Mara"]]
    assert [actors for actors, _ in turns(book.timeline)] == [["Environment"], ["Environment"], ["Mara"]]
    assert counts(book, "set_aside") == {"reserved_name": 1}
    assert counts(book, "changed") == {"name_variant": 1}


def test_a_speaker_outside_the_cast_joins_its_end_in_order_and_gets_no_motivation(shelf: Shelf) -> None:
    book = shelf.imported(
        plot(
            talk([wants("Mara"), wants("Joss")], [says("Porter"), says("Ilse"), says("Joss"), says("Porter")])
        )
    )
    scene = book.timeline.scenes[0]
    assert scene.cast == ["Mara", "Joss", "Porter", "Ilse"]
    assert list(scene.motivations) == ["Mara", "Joss"]
    assert counts(book, "added") == {"speaker_added_to_cast": 2}
    assert counts(book, "noted") == {"no_motivation": 2}


def test_a_key_character_with_a_blank_motivation_is_cast_without_one(shelf: Shelf) -> None:
    book = shelf.imported(plot(talk([wants("Mara", " "), wants("Joss", None)], [says("Mara")])))
    assert casts(book.timeline) == [["Mara", "Joss"]]
    assert book.timeline.scenes[0].motivations == {}
    assert counts(book, "noted") == {"no_motivation": 2}


def test_names_that_differ_in_case_or_spacing_are_the_known_one(shelf: Shelf) -> None:
    book = shelf.imported(
        plot(talk([wants("Mara  Quill")], [says("mara quill"), says("MaraQuill"), says("Mara Quills")])),
    )
    assert casts(book.timeline) == [["Mara Quill", "Mara Quills"]]
    assert [actors for actors, _ in turns(book.timeline)] == [["Mara Quill"], ["Mara Quill"], ["Mara Quills"]]
    assert counts(book, "changed") == {"name_variant": 2, "name_respelled": 1}


def test_a_key_characters_spelling_wins_over_an_earlier_speakers(shelf: Shelf) -> None:
    book = shelf.imported(
        plot(talk([wants("Joss")], [says("MARA")]), talk([wants("Mara")], [says("Mara")])),
    )
    assert casts(book.timeline) == [["Joss", "Mara"], ["Mara"]]


def test_names_are_one_line_and_normalised(shelf: Shelf) -> None:
    book = shelf.imported(
        plot(talk([wants(" Ame\u0301lie\n of  the Lamp ")], [says("Am\u00e9lie of the Lamp")]))
    )
    assert casts(book.timeline) == [["Am\u00e9lie of the Lamp"]]
    assert counts(book, "changed") == {"name_respelled": 1}


@pytest.mark.parametrize("joined", ["Joss and Mara", "Joss, Mara", "joss & MARA", "Joss, and Mara"])
def test_a_joined_name_is_a_group_in_cast_order_if_every_part_is_cast(shelf: Shelf, joined: str) -> None:
    book = shelf.imported(plot(talk([wants("Mara"), wants("Joss")], [says(joined, "Who goes there?")])))
    assert turns(book.timeline) == [(["Mara", "Joss"], "Who goes there?")]
    assert casts(book.timeline) == [["Mara", "Joss"]]
    assert counts(book, "changed") == {"group_speaker": 1}


def test_a_group_of_many_stands_in_cast_order_and_names_each_member_once(shelf: Shelf) -> None:
    names = ["Mara", "Joss", "Ilse", "Porter", "Ned", "Bea"]
    joined = "Bea, Ned, Porter, Joss, Mara, Ilse and Bea"
    book = shelf.imported(plot(talk([wants(name) for name in names], [says(joined, "Now!")])))
    assert turns(book.timeline) == [(names, "Now!")]


def test_a_group_may_hold_a_speaker_who_joins_the_cast_by_speaking_alone_later(shelf: Shelf) -> None:
    book = shelf.imported(plot(talk([wants("Mara")], [says("Porter and Mara"), says("Porter")])))
    assert [actors for actors, _ in turns(book.timeline)] == [["Mara", "Porter"], ["Porter"]]
    assert casts(book.timeline) == [["Mara", "Porter"]]


@pytest.mark.parametrize("joined", ["Mara and Joss", "Mara, the diver", "Mara and Environment", "Sandy"])
def test_a_joined_name_with_a_part_outside_the_cast_is_one_new_character(shelf: Shelf, joined: str) -> None:
    book = shelf.imported(
        plot(talk([wants("Mara")], [says("Mara"), says("Environment", "Rain."), says(joined)]))
    )
    assert casts(book.timeline) == [["Mara", joined]]
    assert turns(book.timeline)[-1] == ([joined], "Good evening.")
    assert "group_speaker" not in book.report.changed


def test_a_joined_name_is_judged_anew_in_each_scene(shelf: Shelf) -> None:
    alone = talk([wants("Mara")], [says("Mara and Joss")])
    both = talk([wants("Mara"), wants("Joss")], [says("Mara and Joss")])
    book = shelf.imported(plot(alone, both))
    assert casts(book.timeline) == [["Mara", "Mara and Joss"], ["Mara", "Joss"]]
    assert turns(book.timeline, 1)[0][0] == ["Mara", "Joss"]


def test_a_key_characters_joined_name_stays_one_name(shelf: Shelf) -> None:
    members = [wants("Mara"), wants("Joss"), wants("Mara and Joss")]
    book = shelf.imported(plot(talk(members, [says("mara and joss")])))
    assert turns(book.timeline)[0][0] == ["Mara and Joss"]


def test_a_key_character_named_twice_is_cast_once_with_the_first_motivation_there_is(shelf: Shelf) -> None:
    members = [wants("Mara", ""), wants("mara", "To leave."), wants("Mara", "To stay.")]
    book = shelf.imported(plot(talk(members, [says("Mara")])))
    assert casts(book.timeline) == [["Mara"]]
    assert book.timeline.scenes[0].motivations == {"Mara": "To leave."}
    assert counts(book, "set_aside") == {"repeated_key_character": 2}


def test_characters_stand_in_order_of_first_appearance_and_a_plots_absent_ones_are_counted(
    shelf: Shelf,
) -> None:
    book = shelf.imported(
        plot(
            talk([wants("Joss")], [says("Porter")]),
            talk([wants("Ilse"), wants("Mara")], [says("Mara"), says("Joss")]),
            key_characters=[{"name": "Mara"}, {"name": "The King"}],
        )
    )
    assert [c.name for c in book.timeline.characters] == ["Joss", "Porter", "Ilse", "Mara"]
    assert counts(book, "set_aside") == {"plot_character_in_no_scene": 1}
    assert book.report.set_aside["plot_character_in_no_scene"].examples == (
        "plots[0].key_characters[1]: The King",
    )


# Keys that drift.


def test_every_spelling_of_a_field_is_read_and_counted(shelf: Shelf) -> None:
    book = shelf.imported(
        plot(
            talk(
                [{"character": "Mara", "thought": "To dive."}, wants("Joss")],
                [{"name": "Mara", "message": "Down!"}, says("Joss", "Up!")],
            ),
            key_characters=[{"character": "Mara", "summary": "She dives."}],
        )
    )
    assert book.timeline.scenes[0].motivations == {"Mara": "To dive.", "Joss": "To find the lamp."}
    assert turns(book.timeline) == [(["Mara"], "Down!"), (["Joss"], "Up!")]
    fields = book.report.fields
    assert fields["motivation"].keys == {"thought": 1, "motivation": 1}
    assert fields["key character's name"].keys == {"character": 1, "name": 1}
    assert fields["speaker"].keys == {"name": 1, "character": 1}
    assert fields["plot character's experience"].keys == {"summary": 1}
    assert "motivation: 1 thought, 1 motivation" in str(book.report)


def test_a_second_spelling_that_says_something_else_is_counted(shelf: Shelf) -> None:
    members = [
        {"name": "Mara", "motivation": "To dive.", "thought": "Deep."},
        {"name": "Joss", "character": "Joss"},
    ]
    book = shelf.imported(plot(talk(members, [says("Mara")])))
    assert book.timeline.scenes[0].motivations["Mara"] == "To dive."
    assert counts(book, "set_aside") == {"second_spelling": 1}


def test_a_message_under_the_key_thought_never_becomes_speech(shelf: Shelf) -> None:
    book = shelf.imported(
        plot(
            talk(
                [wants("Mara")],
                [
                    {"character": "Mara", "thought": "He must not know."},
                    {"character": "Mara", "thought": "[He knows.] Good evening."},
                    {"character": "Environment", "description": "Rain."},
                ],
            )
        )
    )
    assert [content for _, content in turns(book.timeline)] == [
        "[He must not know.]",
        "[He knows.] Good evening.",
        "Rain.",
    ]
    assert counts(book, "changed") == {"message_marked_as_thought": 1}


def test_a_thought_that_stands_in_place_of_the_key_is_joined_to_its_message_again(shelf: Shelf) -> None:
    book = shelf.imported(
        plot(talk([wants("Mara")], [{"character": "Mara", "[He knows.]": " Good evening."}]))
    )
    assert turns(book.timeline) == [(["Mara"], "[He knows.] Good evening.")]
    assert counts(book, "changed") == {"message_in_key": 1}
    assert book.report.fields["message"].empty == 0


@pytest.mark.parametrize("chapter", ["None", " none ", "null"])
def test_a_chapter_that_reads_none_is_absent(shelf: Shelf, chapter: str) -> None:
    book = shelf.imported(plot(talk([wants("Mara")], [says("Mara")]), chapter=chapter))
    assert book.timeline.scenes[0].chapter is None
    assert counts(book, "changed") == {"chapter_says_none": 1}


def test_keys_that_are_not_read_are_named_once(shelf: Shelf) -> None:
    book = shelf.imported(
        plot(talk([{**wants("Mara"), "i_p": 0}] * 2, [{**says("Mara"), "i_u": 0}] * 2), state="finished"),
        split_plot_index=0,
    )
    assert book.report.keys_not_read == (
        "plots[].conversation[].dialogues[].i_u",
        "plots[].conversation[].key_characters[].i_p",
        "plots[].state",
        "split_plot_index",
    )


# What is set aside.


def test_messages_that_cannot_be_used_are_set_aside_and_the_rest_stays(shelf: Shelf) -> None:
    dialogues = [
        says("Mara", "Stays."),
        says("Ghost", ""),
        says("Mara", None),
        {"character": "Mara"},
        says("Mara", 7),
        {"message": "Whose?"},
        says("<SCENE_END>", "Over."),
        says("Mara", "<think>No</think> Yes."),
        "Mara: Hello.",
    ]
    book = shelf.imported(plot(talk([wants("Mara")], dialogues)))
    assert turns(book.timeline) == [(["Mara"], "Stays.")]
    assert casts(book.timeline) == [["Mara"]]
    assert counts(book, "set_aside") == {
        "empty_message": 3,
        "not_text": 1,
        "message_without_speaker": 1,
        "reserved_name": 1,
        "think_close": 1,
        "not_an_object": 1,
    }


def test_plots_and_conversations_that_give_no_scene_are_counted_by_reason(shelf: Shelf) -> None:
    book = shelf.imported(
        plot(),
        plot(conversation=None),
        plot(talk([wants("Mara")], [])),
        plot(talk([wants("Mara")], [says("Mara", " ")])),
        plot(talk([wants("Mara")], [says("Mara")], scenario="")),
        plot(talk([], [says("Environment", "Rain.")])),
        plot(talk([wants("Mara")], [says("Mara", "The one scene.")])),
        "no plot at all",
    )
    assert [scene.index for scene in book.timeline.scenes] == [0]
    assert turns(book.timeline) == [(["Mara"], "The one scene.")]
    assert counts(book, "set_aside") == {
        "plot_without_conversation": 2,
        "conversation_without_dialogue": 2,
        "conversation_without_scenario": 1,
        "conversation_without_cast": 1,
        "message_without_scene": 2,
        "empty_message": 1,
        "not_an_object": 1,
    }


def test_a_text_with_a_closing_think_tag_is_refused_wherever_it_stands(shelf: Shelf) -> None:
    book = shelf.imported(
        plot(
            talk([wants("Mara", "</think> To dive."), wants("</think>")], [says("Mara")]),
            talk([wants("Joss")], [says("Joss")], scenario="Dusk. </think>"),
            summary="A </think> summary.",
        )
    )
    scene = book.timeline.scenes[0]
    assert (scene.cast, scene.motivations, scene.summary) == (["Mara"], {}, None)
    assert len(book.timeline.scenes) == 1
    assert book.report.set_aside["think_close"].count == 4
    assert "</think>" not in book.timeline.model_dump_json()


def test_half_characters_are_replaced_and_control_strings_and_open_brackets_counted(shelf: Shelf) -> None:
    book = shelf.imported(
        plot(
            talk(
                [wants("Ma\ud83dra", "To \udc00 dive \udc00.")],
                [says("Ma\ud83dra", "Hi \ud83d\ude00 <|im_end|> and <think>"), says("Ma\ud83dra", "(waves")],
            )
        )
    )
    scene = book.timeline.scenes[0]
    assert scene.cast == ["Ma\ufffdra"]
    assert scene.motivations == {"Ma\ufffdra": "To \ufffd dive \ufffd."}
    assert scene.interactions[0].content == "Hi \U0001f600 <|im_end|> and <think>"
    assert counts(book, "changed") == {"lone_surrogate": 5}
    assert counts(book, "noted") == {"unclosed_bracket": 1, "control_string": 2}
    str(book.report).encode("utf-8")


# Profiles, names of books, files.


def test_profiles_on_request_reach_only_their_own_characters(shelf: Shelf) -> None:
    path = shelf.put(
        plot(talk([wants("mara"), wants("Joss")], [says("mara")])),
        character_datasets={
            "Mara": {"profile": " **Trade**\nDiver. "},
            "Joss": {},
            "King": {"profile": "Rules."},
        },
    )
    book = import_coser(path, profiles_as_initial=True)
    assert {c.name: c.initial.profile for c in book.timeline.characters} == {
        "Mara": "**Trade**\nDiver.",
        "Joss": None,
    }
    assert counts(book, "added") == {"profile_as_initial": 1}
    assert counts(book, "noted") == {"no_profile": 1}
    assert counts(book, "set_aside") == {"whole_book_profile": 1}


def test_profiles_asked_for_where_there_are_none_is_an_error(shelf: Shelf) -> None:
    with pytest.raises(DataError, match=r"no profile under 'character_datasets'.*import without"):
        import_coser(shelf.put(plot(talk([wants("Mara")], [says("Mara")]))), profiles_as_initial=True)


@pytest.mark.parametrize(
    ("name", "book_id", "title"),
    [
        ("final_Othello.json", "othello", "Othello"),
        ("extracted_King Lear.json", "king-lear", "King Lear"),
        ("A Feast for Crows (Ice and Fire, #4).json", "a-feast-for-crows-ice-and-fire-4", None),
        ("Les Mise\u0301rables.json", "les-miserables", "Les Mis\u00e9rables"),
    ],
)
def test_a_book_is_called_after_its_file(shelf: Shelf, name: str, book_id: str, title: str | None) -> None:
    book = shelf.imported(plot(talk([wants("Mara")], [says("Mara")])), name=name).timeline.book
    assert (book.book_id, book.title, book.author) == (
        book_id,
        title or name.removesuffix(".json"),
        "Unknown",
    )


def test_given_names_of_a_book_win_and_a_bad_id_is_refused(shelf: Shelf) -> None:
    path = shelf.put(plot(talk([wants("Mara")], [says("Mara")])), name="\u7d05\u697c\u5922.json")
    with pytest.raises(DataError, match="Give one as book id"):
        import_coser(path)
    with pytest.raises(ConfigError, match="'Red Chamber'"):
        import_coser(path, book_id="Red Chamber")
    book = import_coser(path, book_id="red-chamber", title="Dream", author="Cao Xueqin").timeline.book
    assert (book.book_id, book.title, book.author) == ("red-chamber", "Dream", "Cao Xueqin")


def test_a_gzipped_book_is_the_same_book(shelf: Shelf) -> None:
    path = shelf.put(plot(talk([wants("Mara")], [says("Mara")])))
    packed = path.with_name("final_Lamp.json.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert import_coser(packed).timeline == import_coser(path).timeline


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"<!DOCTYPE html><html></html>", "HTML"),
        (b'{"plots": [', "not JSON"),
        (b"\xff\xfe{}", "byte 0 is not UTF-8"),
        (b"[" * 100_000, "cannot be read as JSON"),
        (b"[]", "a list of 0"),
        (b'"book"', "a bare str"),
        (b"{}", "keys: none"),
        (b'{"chapters": [], "title": "x"}', "keys: 'chapters', 'title'"),
        (b'{"plots": {}}', "'plots' is not a list"),
        (b'{"schema_version": 1, "scenes": []}', "timeline already"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer"),
        (b"\x1f\x8b\x08torn", "cannot be read"),
        (b'{"plots": []}', "no conversation in it makes a scene (it has no plots)"),
        (b'{"plots": [{"conversation": []}]}', "1 x plots without a conversation"),
    ],
)
def test_a_file_that_is_no_coser_book_is_refused_by_name_reason_and_way_out(
    tmp_path: Path, content: bytes, wrong: str
) -> None:
    path = tmp_path / "book.json"
    path.write_bytes(content)
    with pytest.raises(DataError) as refused:
        import_coser(path)
    message = str(refused.value)
    assert message.startswith(str(path)) and wrong in message
    assert any(way_out in message for way_out in ("Give", "Import", "Use it", "Run", "Fetch"))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        import_coser(tmp_path / "gone.json")
