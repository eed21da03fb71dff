"""Timelines are read whole or refused with every fault of the file (contract section 1)."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from conftest import SAMPLES
from hypothesis import given
from stories import timelines

from ewtrain.errors import DataError
from ewtrain.story import Timeline
from ewtrain.timeline_file import check_timeline, load_timeline, read_timeline, write_timeline

Data = dict[str, Any]


def small() -> Data:
    """A small timeline that provides everything and holds no fault."""
    return {
        "schema_version": 1,
        "book": {"book_id": "b", "title": "T", "author": "A"},
        "characters": [
            {"name": "Ada", "aliases": ["Miss A"], "initial": {"profile": "p", "short_description": "s"}},
            {"name": "Ben", "initial": {"profile": "p", "short_description": "s"}},
        ],
        "locations": [
            {
                "name": "Quay",
                "aliases": ["the dock"],
                "description": "d",
                "initial": {
                    "description": "wet",
                    "important_entities": [{"name": "rope", "state": "coiled"}],
                },
            }
        ],
        "initial_global_state": "g",
        "scenes": [
            {
                "index": 0,
                "location": "Quay",
                "scenario": "s",
                "cast": ["Ada", "Ben"],
                "motivations": {"Ada": "m", "Ben": "m"},
                "interactions": [
                    {"actors": ["Ada"], "content": "hi"},
                    {"actors": ["Ben", "Ada"], "content": "(both nod)", "global_state": "g2"},
                ],
                "character_updates": {"Ada": {"short_description": "s"}, "Ben": {"short_description": "s"}},
            }
        ],
    }


def write(path: Path, data: Any) -> Path:
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def scene(data: Data) -> Data:
    return data["scenes"][0]


def test_the_samples_hold_no_fault_and_no_notice() -> None:
    paths = sorted(SAMPLES.glob("*.timeline.json"))
    assert len(paths) == 2
    for path in paths:
        timeline, report = load_timeline(path)
        assert report.faults == [] and report.notices == []
        assert timeline is not None and len(timeline.scenes) >= 10


def test_aliases_become_official_names_and_groups_stand_in_cast_order(tmp_path: Path) -> None:
    data = small()
    scene(data)["cast"] = ["Miss A", "Ben"]
    scene(data)["location"] = "the dock"
    scene(data)["motivations"] = {"Miss A": "m", "Ben": "m"}
    timeline = read_timeline(write(tmp_path / "b.timeline.json", data))
    read = timeline.scenes[0]
    assert read.cast == ["Ada", "Ben"] and read.location == "Quay"
    assert set(read.motivations) == {"Ada", "Ben"}
    assert read.interactions[1].actors == ["Ada", "Ben"]


def test_the_papers_key_spellings_are_read_and_canonical_ones_written(tmp_path: Path) -> None:
    data = small()
    data["locations"][0]["initial"] = {
        "Detailed Description": "a house",
        "Sub Locations": [
            {
                "name": "loft",
                "description": "dry",
                "Important Entities": [{"name": "bell", "state": "cracked"}],
            }
        ],
    }
    timeline = read_timeline(write(tmp_path / "b.timeline.json", data))
    state = timeline.locations[0].initial
    assert state is not None and state.sub_locations is not None
    assert state.sub_locations[0].important_entities[0].name == "bell"
    write_timeline(timeline, tmp_path / "again.timeline.json")
    text = (tmp_path / "again.timeline.json").read_text(encoding="utf-8")
    assert "Detailed" not in text and '"sub_locations"' in text


def test_gzip_and_zstd_are_read_too(tmp_path: Path) -> None:
    raw = json.dumps(small()).encode()
    (tmp_path / "a.timeline.json.gz").write_bytes(gzip.compress(raw))
    (tmp_path / "b.timeline.json.zst").write_bytes(zstandard.compress(raw))
    assert read_timeline(tmp_path / "a.timeline.json.gz") == read_timeline(tmp_path / "b.timeline.json.zst")


@given(timelines())
def test_a_timeline_is_the_same_after_it_is_written_and_read(tmp_path: Path, timeline: Timeline) -> None:
    write_timeline(timeline, tmp_path / "t.timeline.json")
    assert read_timeline(tmp_path / "t.timeline.json") == timeline


def _set(path: str, value: Any) -> Callable[[Data], None]:
    def change(data: Data) -> None:
        *steps, last = [int(s) if s.isdigit() else s for s in path.split("/")]
        target: Any = data
        for step in steps:
            target = target[step]
        if value is DELETE:
            del target[last]
        elif value is APPEND_FIRST:
            target[last].append(copy.deepcopy(target[last][0]))
        else:
            target[last] = value

    return change


DELETE, APPEND_FIRST = object(), object()
TURN = "scenes/0/interactions/0"

FAULTS: dict[str, tuple[Callable[[Data], None], str, str]] = {
    "a missing field": (_set("book/title", DELETE), "book.title", "is missing"),
    "an unknown key": (_set("scenes/0/locaton", "Quay"), "scenes[0].locaton", "Did you mean 'location'?"),
    "a wrong type": (_set("scenes/0/scenario", 7), "scenes[0].scenario", "found 7"),
    "a wrong version": (_set("schema_version", 2), "schema_version", "found 2"),
    "a bad book id": (_set("book/book_id", "Bad Id"), "book.book_id", "found 'Bad Id'"),
    "a bad language": (_set("book/language", "english!"), "book.language", "BCP 47"),
    "no language": (_set("book/language", "und"), "book.language", "BCP 47"),
    "a name of two lines by Unicode": (
        _set("characters/0/name", "A\u2028da"),
        "characters[0].name",
        "line break",
    ),
    "a member with edges": (_set("scenes/0/cast/1", "Ben "), "scenes[0].cast[1]", "Did you mean 'Ben'?"),
    "an unchanged location state in other words": (
        _set(
            f"{TURN}/location_state",
            {
                "description": " wet",
                "Important Entities": [{"name": "rope ", "state": "coiled"}],
                "sub_locations": None,
            },
        ),
        "scenes[0].interactions[0].location_state",
        "equals the current state",
    ),
    "a person as an entity, with edges": (
        _set("locations/0/initial/important_entities/0/name", "Ada "),
        "locations[0].initial.important_entities[0].name",
        "is a character",
    ),
    "a key in both spellings": (
        _set("locations/0/initial/Detailed Description", "x"),
        "locations[0].initial.Detailed Description",
        "stands beside 'description'",
    ),
    "no scenes": (_set("scenes", []), "scenes", "at least 1"),
    "an empty cast": (_set("scenes/0/cast", []), "scenes[0].cast", "at least 1"),
    "a blank text": (_set(f"{TURN}/content", "  "), f"{'scenes[0].interactions[0].content'}", "at least 1"),
    "a lone surrogate": (
        _set(f"{TURN}/content", "a\ud83d b"),
        "scenes[0].interactions[0].content",
        "lone surrogates",
    ),
    "an unknown task": (_set("provides", ["scene_casts"]), "provides[0]", "scene_casts"),
    "a task named twice": (_set("provides", ["next_character"] * 2), "provides", "twice"),
    "nothing provided": (_set("provides", []), "provides", "is empty"),
    "a doubled character": (_set("characters", APPEND_FIRST), "characters[2].name", "name of two characters"),
    "a doubled location": (_set("locations", APPEND_FIRST), "locations[1].name", "name of two locations"),
    "an alias that is another's name": (
        _set("characters/0/aliases", ["Ben"]),
        "characters[0].aliases[0]",
        "also names 'Ben'",
    ),
    "an alias of two": (
        _set("characters/1/aliases", ["Miss A"]),
        "characters[1].aliases[0]",
        "also names 'Ada'",
    ),
    "a name with edges": (_set("characters/0/name", "Ada "), "characters[0].name", "white space"),
    "a name of two lines": (_set("characters/0/name", "A\nda"), "characters[0].name", "line break"),
    "a name not in NFC": (_set("characters/0/name", "Zoe\u0308"), "characters[0].name", "NFC"),
    "a reserved name": (_set("characters/0/name", "Environment"), "characters[0].name", "reserved"),
    "a reserved alias": (
        _set("characters/0/aliases", ["<SCENE_END>"]),
        "characters[0].aliases[0]",
        "reserved",
    ),
    "an unknown member": (_set("scenes/0/cast/1", "Bem"), "scenes[0].cast[1]", "Did you mean 'Ben'?"),
    "a member twice": (_set("scenes/0/cast", ["Ada", "Ben", "Miss A"]), "scenes[0].cast[2]", "stands twice"),
    "an unknown actor": (_set(f"{TURN}/actors", ["Zed"]), "scenes[0].interactions[0].actors[0]", "'Zed'"),
    "an actor twice": (
        _set(f"{TURN}/actors", ["Ada", "Ada"]),
        "scenes[0].interactions[0].actors[1]",
        "twice",
    ),
    "no actor": (_set(f"{TURN}/actors", []), "scenes[0].interactions[0].actors", "at least 1"),
    "Environment in a group": (
        _set(f"{TURN}/actors", ["Environment", "Ada"]),
        "scenes[0].interactions[0].actors",
        "mixes Environment",
    ),
    "a wrong index": (_set("scenes/0/index", 3), "scenes[0].index", "write 0"),
    "an unknown location": (_set("scenes/0/location", "Quai"), "scenes[0].location", "Did you mean 'Quay'?"),
    "a missing motivation": (_set("scenes/0/motivations/Ben", DELETE), "scenes[0].motivations", "'Ben'"),
    "a motivation of a stranger": (
        _set("scenes/0/motivations/Zed", "m"),
        "scenes[0].motivations['Zed']",
        "'Zed'",
    ),
    "a missing update": (
        _set("scenes/0/character_updates/Ben", DELETE),
        "scenes[0].character_updates",
        "'Ben'",
    ),
    "an unchanged global state": (
        _set("scenes/0/interactions/1/global_state", "g "),
        "scenes[0].interactions[1].global_state",
        "equals the current state",
    ),
    "an unchanged location state": (
        _set(
            f"{TURN}/location_state",
            {"description": "wet", "important_entities": [{"name": "rope", "state": "coiled"}]},
        ),
        "scenes[0].interactions[0].location_state",
        "equals the current state",
    ),
    "an unchanged profile": (
        _set("scenes/0/character_updates/Ada/profile", "p"),
        "scenes[0].character_updates['Ada'].profile",
        "equals the current profile",
    ),
    "a location state without a location": (
        lambda data: (
            _set("scenes/0/location", None)(data),
            _set(f"{TURN}/location_state", {"description": "x", "important_entities": []})(data),
        )[0],
        "scenes[0].interactions[0].location_state",
        "scene without one",
    ),
    "a state both flat and grouped": (
        _set(f"{TURN}/location_state", {"description": "x", "important_entities": [], "sub_locations": []}),
        "scenes[0].interactions[0].location_state",
        "either important_entities or sub_locations",
    ),
    "a person as an entity": (
        _set("locations/0/initial/important_entities/0/name", "Miss A"),
        "locations[0].initial.important_entities[0].name",
        "is a character",
    ),
    "an entity twice": (
        _set("locations/0/initial/important_entities", APPEND_FIRST),
        "locations[0].initial.important_entities[1].name",
        "stands twice",
    ),
    "a think tag": (_set(f"{TURN}/content", "a</think>b"), "scenes[0].interactions[0].content", "</think>"),
    "a missing global state": (_set("initial_global_state", DELETE), "initial_global_state", "world_update"),
    "a missing profile": (
        _set("characters/0/initial/profile", DELETE),
        "characters[0].initial.profile",
        "missing",
    ),
    "a missing location state": (_set("locations/0/initial", DELETE), "locations[0].initial", "missing"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_kind_of_fault_is_reported_with_its_path_and_what_would_be_right(
    tmp_path: Path, name: str
) -> None:
    change, path, said = FAULTS[name]
    data = small()
    assert load_timeline(write(tmp_path / "good.timeline.json", data))[1].faults == []
    change(data)
    timeline, report = load_timeline(write(tmp_path / "b.timeline.json", data))
    assert timeline is None
    hits = [
        fault for fault in report.faults if fault.path == path and said in f"{fault.wrong}. {fault.right}"
    ]
    assert hits, report.faults
    assert hits[0].right


def test_all_faults_of_a_file_come_in_one_report_shape_and_references_together(tmp_path: Path) -> None:
    data = small()
    del data["book"]["title"]
    scene(data)["interactions"][0] = {"actors": ["Zed"], "content": 7}
    scene(data)["index"] = 4
    with pytest.raises(DataError) as caught:
        read_timeline(write(tmp_path / "b.timeline.json", data))
    paths = {fault.path for fault in caught.value.faults}
    assert paths >= {"book.title", "scenes[0].interactions[0].content", "scenes[0].interactions[0].actors[0]"}
    assert "scenes[0].index" in paths
    assert all(str(tmp_path / "b.timeline.json") in str(fault) for fault in caught.value.faults)


def test_a_key_that_stands_twice_is_a_fault(tmp_path: Path) -> None:
    text = json.dumps(small()).replace('"scenario": "s"', '"scenario": "s", "scenario": "s2"')
    _, report = load_timeline(write(tmp_path / "b.timeline.json", text))
    assert [fault.path for fault in report.faults] == ["scenes[0].scenario"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "empty"),
        ("<!DOCTYPE html><html></html>", "web page"),
        ('{"book": ', "cut off"),
        ("[1, 2]", "where a timeline object should be"),
        ("\ufeff" + "{}", "is missing"),
        ("not json", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[" + "1" * 5000 + "]", "not JSON of ours"),
    ],
)
def test_what_is_no_timeline_is_refused_with_a_clear_message(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "b.timeline.json"
    path.write_bytes(content.encode())
    with pytest.raises(DataError, match=said):
        read_timeline(path)


def test_a_gzip_file_with_a_broken_byte_is_refused(tmp_path: Path) -> None:
    raw = bytearray(gzip.compress(json.dumps(small()).encode()))
    raw[20] ^= 0xFF
    (tmp_path / "b.timeline.json.gz").write_bytes(raw)
    with pytest.raises(DataError, match=r"cannot be read|cut off"):
        read_timeline(tmp_path / "b.timeline.json.gz")


def test_a_character_may_be_called_like_a_printed_key(tmp_path: Path) -> None:
    data = json.loads(json.dumps(small()).replace('"Ben"', '"Important Entities"'))
    assert read_timeline(write(tmp_path / "b.timeline.json", data)).scenes[0].cast == [
        "Ada",
        "Important Entities",
    ]


def test_no_white_space_of_any_kind_is_left_at_the_edges_of_a_text(tmp_path: Path) -> None:
    data = small()
    scene(data)["interactions"][0]["content"] = "\x1fhi\x1c"
    timeline = read_timeline(write(tmp_path / "b.timeline.json", data))
    assert timeline.scenes[0].interactions[0].content == "hi"


@pytest.mark.parametrize("name", ["b.timeline.json", "b.timeline.json.gz", "b.timeline.json.zst"])
def test_bytes_that_are_no_text_or_no_archive_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x00\xff\xfe binary")
    with pytest.raises(DataError):
        read_timeline(tmp_path / name)


@pytest.mark.parametrize("packed", [gzip.compress, zstandard.compress])
def test_a_compressed_file_that_is_cut_off_is_refused_not_read_short(
    tmp_path: Path, packed: Callable[[bytes], bytes]
) -> None:
    name = "b.timeline.json" + (".gz" if packed is gzip.compress else ".zst")
    raw = packed(json.dumps(small()).encode() + b" " * 500_000)
    (tmp_path / name).write_bytes(raw)
    assert read_timeline(tmp_path / name)
    (tmp_path / name).write_bytes(raw[: len(raw) - 6])
    with pytest.raises(DataError, match="cut off"):
        read_timeline(tmp_path / name)


def test_notices_name_unclosed_brackets_control_strings_and_word_counts(tmp_path: Path) -> None:
    data = small()
    scene(data)["interactions"][0]["content"] = "wait <|im_end|> [so"
    scene(data)["interactions"][1]["content"] = "<SCENE_END>"
    data["previous_scene"] = {
        "scenario": "s",
        "cast": ["Ada"],
        "interactions": [{"actors": ["Ada"], "content": "(so"}],
    }
    timeline, report = load_timeline(write(tmp_path / "b.timeline.json", data))
    assert timeline is not None
    said = " ".join(f"{notice.path} {notice.wrong}" for notice in report.notices)
    assert "'<|im_end|>'" in said and "never closed" in said and "1 words" in said
    assert "scenes[0].interactions[1].content holds the control string '<SCENE_END>'" in said
    assert "previous_scene.interactions[0].content '(' at 0" in said


def test_a_partial_source_may_lack_what_only_other_tasks_need(tmp_path: Path) -> None:
    data = small()
    data["provides"] = ["motivation_update", "next_character", "interaction_gen"]
    del (
        data["initial_global_state"],
        data["locations"],
        scene(data)["location"],
        scene(data)["character_updates"],
    )
    del scene(data)["interactions"][1]["global_state"], scene(data)["motivations"]["Ben"]
    for character in data["characters"]:
        del character["initial"]
    timeline, report = load_timeline(write(tmp_path / "b.timeline.json", data))
    assert timeline is not None
    assert [notice.path for notice in report.notices] == ["scenes[0].motivations"]


def test_writing_refuses_what_breaks_the_contract_and_leaves_no_file(tmp_path: Path) -> None:
    timeline = Timeline.model_validate(small() | {"scenes": [scene(small()) | {"index": 5}]})
    assert check_timeline(timeline).faults
    with pytest.raises(DataError):
        write_timeline(timeline, tmp_path / "b.timeline.json")
    assert list(tmp_path.iterdir()) == []
