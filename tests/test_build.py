"""A dataset folder: what is in it, that it is the same twice, and that it is whole or not there."""

from __future__ import annotations

import errno
import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pytest
from conftest import SAMPLES
from hypothesis import given, settings
from hypothesis import strategies as st
from stories import marks, timelines

from data_builders import build as build_module
from data_builders.build import MANIFEST, BuildSettings, build
from data_builders.snapshots import MIN_INTERACTIONS, draw_points
from data_builders.splits import Splits, draw_books, training_scenes
from data_builders.write import RowWriter, read_rows, whole_folder
from ewtrain.errors import DataError
from ewtrain.replay import state_before
from ewtrain.story import Snapshot, Timeline
from ewtrain.tasks import TASKS, WORDINGS
from ewtrain.timeline_file import read_timeline, write_timeline

FILES = ["train.parquet", "validation.parquet"]
FEW = settings(max_examples=8)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("samples") / "data"
    manifest = build(
        [SAMPLES],
        out,
        BuildSettings(),
        general=str(SAMPLES / "general.jsonl"),
        splits_file=SAMPLES / "splits.json",
    )
    return out, manifest


def rows(out: Path, adapter: str, name: str) -> list[dict[str, Any]]:
    return list(read_rows(out / adapter / name))


def all_rows(out: Path) -> list[dict[str, Any]]:
    return [
        row
        for adapter in ("world_model", "character_agent")
        for name in FILES
        for row in rows(out, adapter, name)
    ]


def write_corpus(folder: Path, books: list[Timeline]) -> list[Path]:
    paths = []
    for book in books:
        paths.append(folder / f"{book.book.book_id}.timeline.json")
        write_timeline(book, paths[-1])
    return paths


def three_books(**kwargs: Any) -> st.SearchStrategy[list[Timeline]]:
    return st.tuples(*(timelines(book_id=name, min_scenes=3, **kwargs) for name in ("a", "b", "c"))).map(list)


def folder_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def test_the_samples_build_holds_the_contracts_files(samples: tuple[Path, dict[str, Any]]) -> None:
    out, manifest = samples
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    expected = {f"{adapter}/{name}" for adapter in ("world_model", "character_agent") for name in FILES}
    expected |= {
        "world_model/validation_updates.parquet",
        "snapshots.jsonl",
        "splits.json",
        MANIFEST,
        "README.md",
    }
    assert found == expected
    assert json.loads((out / MANIFEST).read_text(encoding="utf-8")) == manifest
    assert manifest["snapshots"]["ood"] > 0
    assert any(row["id"] == "the-lamp-at-orrin-head:13:scene_cast::" for row in all_rows(out))


def test_load_dataset_reads_both_configs_of_the_card(
    samples: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    out, manifest = samples
    for adapter in ("world_model", "character_agent"):
        loaded = datasets.load_dataset(str(out), adapter, cache_dir=str(tmp_path))
        for split in ("train", "validation"):
            counted = manifest["counts"][adapter][split]
            assert loaded[split].num_rows == sum(task["rows"] for task in counted.values())
            assert loaded[split][0]["messages"][0]["role"] == "system"


def test_the_manifest_counts_what_the_files_hold(samples: tuple[Path, dict[str, Any]]) -> None:
    out, manifest = samples
    for adapter in ("world_model", "character_agent"):
        for name in FILES:
            counted = Counter[str]()
            turns = Counter[str]()
            for row in rows(out, adapter, name):
                counted[row["task"]] += 1
                turns[row["task"]] += sum(message["role"] == "assistant" for message in row["messages"])
            recorded = manifest["counts"][adapter][name.removesuffix(".parquet")]
            assert counted == {task: n["rows"] for task, n in recorded.items()}
            assert turns == {task: n["assistant_turns"] for task, n in recorded.items()}
    assert manifest["tasks"] == {name: task.fingerprint() for name, task in TASKS.items()}


def test_general_rows_match_task_rows_one_to_one_in_each_split(samples: tuple[Path, dict[str, Any]]) -> None:
    out, manifest = samples
    for adapter in ("world_model", "character_agent"):
        report = manifest["general"]["adapters"][adapter]
        for split in ("train", "validation"):
            counted = manifest["counts"][adapter][split]
            task_rows = sum(n["rows"] for task, n in counted.items() if task != "general")
            short = report["validation_shortfall"] if split == "validation" else 0
            assert counted["general"]["rows"] == task_rows - short
        held_out = {r["id"].rsplit(":", 1)[0] for r in rows(out, adapter, FILES[1]) if r["task"] == "general"}
        trained = {r["id"].rsplit(":", 1)[0] for r in rows(out, adapter, FILES[0]) if r["task"] == "general"}
        assert held_out and trained and not held_out & trained


def test_row_ids_are_unique_over_the_whole_folder(samples: tuple[Path, dict[str, Any]]) -> None:
    ids = Counter((row["adapter"], row["id"]) for row in all_rows(samples[0]))
    assert set(ids.values()) == {1}


@FEW
@given(three_books(), st.integers(0, 2))
def test_two_builds_of_one_seed_give_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, books: list[Timeline], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("twice")
    paths = write_corpus(folder, books)
    settings_ = BuildSettings(seed=seed, mixture="balanced")
    general = str(SAMPLES / "general.jsonl")
    build(paths, folder / "one", settings_, general=general)
    build(paths[::-1], folder / "two", settings_, general=general)
    assert folder_hash(folder / "one") == folder_hash(folder / "two")


@FEW
@given(three_books())
def test_nothing_of_one_scene_is_supervised_on_both_sides_mix_h26(
    tmp_path_factory: pytest.TempPathFactory, books: list[Timeline]
) -> None:
    folder = tmp_path_factory.mktemp("sides")
    out = folder / "out"
    build(write_corpus(folder, books), out, BuildSettings())
    units: dict[str, set[tuple[str, int]]] = {name: set() for name in FILES}
    for adapter in ("world_model", "character_agent"):
        for name in FILES:
            units[name] |= {(row["book_id"], row["scene"]) for row in rows(out, adapter, name)}
    assert units[FILES[0]] and units[FILES[1]] and not units[FILES[0]] & units[FILES[1]]


@FEW
@given(three_books())
def test_balanced_draws_each_task_down_to_the_smallest_in_train_alone(
    tmp_path_factory: pytest.TempPathFactory, books: list[Timeline]
) -> None:
    folder = tmp_path_factory.mktemp("balanced")
    paths = write_corpus(folder, books)
    full = build(paths, folder / "full", BuildSettings())["counts"]
    balanced = build(paths, folder / "balanced", BuildSettings(mixture="balanced"))["counts"]
    for adapter in full:
        smallest = min(n["rows"] for n in full[adapter]["train"].values())
        assert {task: n["rows"] for task, n in balanced[adapter]["train"].items()} == dict.fromkeys(
            full[adapter]["train"], smallest
        )
        assert balanced[adapter].get("validation") == full[adapter].get("validation")
    kept = {row["id"] for row in all_rows(folder / "balanced")}
    assert kept <= {row["id"] for row in all_rows(folder / "full")}


def test_balanced_draws_from_training_and_leaves_validation_as_it_is(
    samples: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    settings_ = BuildSettings(mixture="balanced")
    build([SAMPLES], tmp_path / "out", settings_, splits_file=SAMPLES / "splits.json")
    for adapter in ("world_model", "character_agent"):
        full, balanced = (
            [[r["id"] for r in rows(out, adapter, name) if r["task"] != "general"] for name in FILES]
            for out in (samples[0], tmp_path / "out")
        )
        assert len(balanced[0]) < len(full[0]) and balanced[1] == full[1]


@FEW
@given(three_books())
def test_validation_updates_hold_a_row_for_every_interaction_of_the_validation_scenes(
    tmp_path_factory: pytest.TempPathFactory, books: list[Timeline]
) -> None:
    folder = tmp_path_factory.mktemp("updates")
    out = folder / "out"
    build(write_corpus(folder, books), out, BuildSettings())
    splits = Splits.model_validate_json((out / "splits.json").read_text(encoding="utf-8"))
    wanted = {
        f"{book.book.book_id}:{scene.index}:world_update:{i}:"
        for book in books
        for scene in book.scenes
        if splits.is_validation(book.book.book_id, scene.index)
        for i in range(len(scene.interactions))
    }
    assert {row["id"] for row in rows(out, "world_model", "validation_updates.parquet")} == wanted


def test_by_row_holds_out_a_tenth_of_each_adapters_rows(tmp_path: Path) -> None:
    manifest = build([SAMPLES], tmp_path / "out", BuildSettings(validation_by="row"))
    for by_split in manifest["counts"].values():
        total = {split: sum(n["rows"] for n in by_split[split].values()) for split in by_split}
        assert total["validation"] == (total["train"] + total["validation"] + 5) // 10


def test_adding_a_book_changes_no_row_of_another(tmp_path: Path) -> None:
    lamp, key = sorted(SAMPLES.glob("*.timeline.json"), key=lambda path: path.name, reverse=True)
    only = {lamp.name.split(".")[0]: "train_only"}
    (tmp_path / "one.json").write_text(json.dumps({"books": only, "validation": {next(iter(only)): [4]}}))
    both = only | {key.name.split(".")[0]: "train_only"}
    (tmp_path / "two.json").write_text(json.dumps({"books": both, "validation": {next(iter(only)): [4]}}))
    build([lamp], tmp_path / "one", BuildSettings(), splits_file=tmp_path / "one.json")
    build([lamp, key], tmp_path / "two", BuildSettings(), splits_file=tmp_path / "two.json")
    first = all_rows(tmp_path / "one")
    assert first == [row for row in all_rows(tmp_path / "two") if row["book_id"] in only]


def test_one_wording_is_drawn_for_a_task_in_a_scene_from_the_seed(
    samples: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    build([SAMPLES], tmp_path / "out", BuildSettings(seed=1), splits_file=SAMPLES / "splits.json")
    drawn = []
    for out in (samples[0], tmp_path / "out"):
        wordings: dict[tuple[str, int, str], set[int]] = {}
        for row in all_rows(out):
            if row["task"] != "general":
                key = (row["book_id"], row["scene"], row["task"])
                wordings.setdefault(key, set()).add(row["wording"])
        assert all(len(one) == 1 for one in wordings.values())
        drawn.append({key: wording for key, (wording,) in wordings.items()})
        assert set(drawn[-1].values()) == set(range(WORDINGS))
        for part in (slice(2), slice(2, 3)):  # not one for a scene's tasks, nor one for a task's scenes
            shared: dict[Any, set[int]] = {}
            for key, wording in drawn[-1].items():
                shared.setdefault(key[part], set()).add(wording)
            assert any(len(several) > 1 for several in shared.values())
    assert drawn[0] != drawn[1]


def test_the_books_kinds_depend_on_the_seed() -> None:
    books = [f"b{i}" for i in range(20)]
    assert len({tuple(draw_books(books, seed).items()) for seed in range(5)}) == 5


@pytest.mark.parametrize("by", ["scene", "book", "row"])
def test_a_builds_own_splits_given_back_yield_the_same_rows(tmp_path: Path, by: Any) -> None:
    build([SAMPLES], tmp_path / "one", BuildSettings(validation_by=by))
    build(
        [SAMPLES],
        tmp_path / "two",
        BuildSettings(validation_by=by),
        splits_file=tmp_path / "one" / "splits.json",
    )
    for one in sorted((tmp_path / "one").rglob("*")):
        if one.is_file() and one.name != MANIFEST:  # the manifest says that splits were given
            assert (tmp_path / "two" / one.relative_to(tmp_path / "one")).read_bytes() == one.read_bytes()


def test_a_splits_file_with_no_validation_scene_gets_one_drawn(tmp_path: Path) -> None:
    given_ = json.loads((SAMPLES / "splits.json").read_text(encoding="utf-8"))
    given_["validation"] = {book: [] for book in given_["validation"]}
    (tmp_path / "splits.json").write_text(json.dumps(given_), encoding="utf-8")
    build([SAMPLES], tmp_path / "out", BuildSettings(), splits_file=tmp_path / "splits.json")
    assert all(rows(tmp_path / "out", adapter, FILES[1]) for adapter in ("world_model", "character_agent"))


def test_a_splits_file_that_names_validation_scenes_is_refused_where_rows_are_to_be_drawn(
    tmp_path: Path,
) -> None:
    settings_ = BuildSettings(validation_by="row")
    with pytest.raises(DataError, match="names validation scenes"):
        build([SAMPLES], tmp_path / "out", settings_, splits_file=SAMPLES / "splits.json")


# --- tests never leak into training, nor the future into a snapshot --------------------------------------


def scenes_in(text: str) -> set[str]:
    """Return the scenes whose texts, of whatever kind, stand in a text."""
    return {mark[1:].split(":")[0] for mark in marks(text)}


@FEW
@given(
    timelines(
        book_id="a", min_scenes=4, max_scenes=6, min_turns=MIN_INTERACTIONS, max_turns=7, begins_later=True
    ),
    st.sampled_from(["train_test", "ood"]),
)
def test_nothing_of_a_test_scene_is_in_training_and_nothing_later_in_a_snapshot(
    tmp_path_factory: pytest.TempPathFactory, book: Timeline, kind: str
) -> None:
    other = book.model_copy(update={"book": book.book.model_copy(update={"book_id": "z"})})
    folder = tmp_path_factory.mktemp("leaks")
    paths = write_corpus(folder, [book, other])
    (folder / "splits.json").write_text(
        json.dumps({"books": {"a": kind, "z": "train_only"}}), encoding="utf-8"
    )
    build(paths, folder / "out", BuildSettings(), splits_file=folder / "splits.json")
    num_scenes = len(book.scenes)
    first_test = training_scenes(kind, num_scenes)  # type: ignore[arg-type]
    test = {str(t) for t in range(first_test, num_scenes)}
    trained = set()
    for row in [
        *all_rows(folder / "out"),
        *rows(folder / "out", "world_model", "validation_updates.parquet"),
    ]:
        if row["book_id"] == "a":
            trained |= scenes_in(json.dumps(row, ensure_ascii=False))
    assert not trained & test
    assert trained >= {str(t) for t in range(first_test)}
    lines = (folder / "out" / "snapshots.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines
    for line in lines:
        after = Snapshot.model_validate_json(line).after_scene
        found = scenes_in(line)
        assert str(after) in found and not found & {str(t) for t in range(after + 1, num_scenes)}
        first = first_test if kind == "train_test" else num_scenes - 7 * num_scenes // 10
        assert first <= after < num_scenes - 1


def test_a_snapshot_is_the_state_at_the_end_of_its_scene(samples: tuple[Path, dict[str, Any]]) -> None:
    lines = (samples[0] / "snapshots.jsonl").read_text(encoding="utf-8").splitlines()
    assert 0 < len(lines) <= 20
    for line in lines:
        snapshot = Snapshot.model_validate_json(line)
        timeline = read_timeline(SAMPLES / f"{snapshot.book.book_id}.timeline.json")
        state = state_before(timeline, snapshot.after_scene + 1)
        assert snapshot.snapshot_id == f"{snapshot.book.book_id}-{snapshot.after_scene}"
        assert (snapshot.global_state, snapshot.locations) == (state.global_state, state.locations)
        assert (snapshot.characters, snapshot.previous_scene) == (state.characters, state.previous_scene)
        assert list(snapshot.characters) == [person.name for person in timeline.characters]
        assert len(timeline.scenes[snapshot.after_scene].interactions) >= 5
        for name, examples in snapshot.style_examples.items():
            alone = [
                turn.content
                for scene in timeline.scenes[: snapshot.after_scene + 1]
                for turn in scene.interactions
                if turn.actors == [name]
            ]
            assert len(examples) == min(10, len(alone)) and set(examples) <= set(alone)
            assert not alone or (examples[0], examples[-1]) == (alone[0], alone[-1])


def book_of(num_turns: list[int]) -> Timeline:
    """A book of one character whose scenes have so many interactions."""
    state = {"profile": "p", "short_description": "s"}
    return Timeline.model_validate(
        {
            "book": {"book_id": "book", "title": "T", "author": "A"},
            "characters": [{"name": "Ada", "initial": state}],
            "initial_global_state": "g",
            "scenes": [
                {
                    "index": t,
                    "scenario": "s",
                    "cast": ["Ada"],
                    "motivations": {"Ada": "m"},
                    "interactions": [{"actors": ["Ada"], "content": "hi"}] * num,
                    "character_updates": {"Ada": {"short_description": "s"}},
                }
                for t, num in enumerate(num_turns)
            ],
        }
    )


def test_snapshots_are_at_most_5_of_a_train_test_book_and_20_of_an_ood_one() -> None:
    book = book_of([5] * 40)
    assert draw_points(book, "train_only", 0) == []
    for kind, most, candidates in (("train_test", 5, range(28, 39)), ("ood", 20, range(12, 39))):
        points = draw_points(book, kind, 0)  # type: ignore[arg-type]
        assert len(points) == most and points == sorted(set(points)) and set(points) <= set(candidates)


def test_which_snapshots_are_taken_depends_on_the_seed() -> None:
    book = book_of([5] * 40)
    for kind in ("train_test", "ood"):
        assert len({tuple(draw_points(book, kind, seed)) for seed in range(5)}) == 5  # type: ignore[arg-type]


def test_a_snapshot_needs_five_interactions_and_a_scene_after_it() -> None:
    assert draw_points(book_of([5] * 7 + [5, 4, 5, 5]), "train_test", 0) == [7, 9]
    assert draw_points(book_of([5, 5, 5, 5, 0, 4, 5, 5]), "ood", 0) == [3, 6]


# --- what a source lacks, what is rejected ---------------------------------------------------------------


def test_rows_of_tasks_that_a_source_does_not_provide_are_counted_not_made(tmp_path: Path) -> None:
    data = json.loads((SAMPLES / "the-lamp-at-orrin-head.timeline.json").read_text(encoding="utf-8"))
    data["provides"] = ["next_character", "interaction_gen"]
    path = tmp_path / "b.timeline.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    manifest = build([path], tmp_path / "out", BuildSettings())
    assert {row["task"] for row in all_rows(tmp_path / "out")} == {"next_character", "interaction_gen"}
    assert manifest["dropped"]["not_in_source"]["count"] > 0
    assert len(manifest["dropped"]["not_in_source"]["examples"]) == 3
    assert manifest["snapshots"] == {"id": 0, "ood": 0}


def with_control_strings(folder: Path, every: int) -> Path:
    data = json.loads((SAMPLES / "the-lamp-at-orrin-head.timeline.json").read_text(encoding="utf-8"))
    for scene in data["scenes"]:
        for interaction in scene["interactions"][::every]:
            interaction["content"] += " <|im_end|>"
    path = folder / "b.timeline.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_row_h32_a_drop_share_over_the_limit_fails_the_build_with_reasons_and_examples(
    tmp_path: Path,
) -> None:
    path = with_control_strings(tmp_path, every=2)
    with pytest.raises(DataError, match=r"rejected_not_allowed: \d+ \(such as .*interaction_gen"):
        build([path], tmp_path / "out", BuildSettings())
    assert not (tmp_path / "out").exists()
    manifest = build([path], tmp_path / "out", BuildSettings(drop_share_limit=1.0))
    dropped = manifest["dropped"]["rejected_not_allowed"]
    assert dropped["count"] > 3 and len(dropped["examples"]) == 3
    ids = {row["id"] for row in all_rows(tmp_path / "out")}
    assert not ids & set(dropped["examples"])


def test_a_gold_answer_that_comes_back_changed_stops_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = type(TASKS["motivation_update"])
    monkeypatch.setattr(task, "parse", lambda self, completion, inp: "something else")
    with pytest.raises(DataError, match="changes when it is written and read"):
        build([SAMPLES], tmp_path / "out", BuildSettings())
    assert not (tmp_path / "out").exists()


# --- bad input, and a folder that is whole or not there --------------------------------------------------


def test_one_bad_book_fails_the_build_with_all_faults_unless_set_aside_by_name(tmp_path: Path) -> None:
    good = SAMPLES / "the-lamp-at-orrin-head.timeline.json"
    (tmp_path / "bad.timeline.json").write_text('{"book": {}}', encoding="utf-8")
    (tmp_path / "page.timeline.json").write_text("<html>404</html>", encoding="utf-8")
    paths = [good, tmp_path]
    with pytest.raises(DataError) as caught:
        build(paths, tmp_path / "out", BuildSettings())
    assert "bad.timeline.json: book.book_id: is missing" in str(caught.value)
    assert "page.timeline.json: a web page" in str(caught.value)
    assert not (tmp_path / "out").exists()
    manifest = build(paths, tmp_path / "out", BuildSettings(skip_bad=True))
    assert set(manifest["set_aside"]) == {"bad.timeline.json", "page.timeline.json"}
    assert list(manifest["books"]) == ["the-lamp-at-orrin-head"]


def test_two_books_with_one_id_are_both_named(tmp_path: Path) -> None:
    text = (SAMPLES / "the-lamp-at-orrin-head.timeline.json").read_text(encoding="utf-8")
    for name in ("one", "two"):
        (tmp_path / f"{name}.timeline.json").write_text(text, encoding="utf-8")
    with pytest.raises(
        DataError, match=r"two\.timeline\.json: book\.book_id: .*is also the id of .*one\.timeline"
    ):
        build([tmp_path], tmp_path / "out", BuildSettings())


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_no_timeline_at_all_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no such file|no timeline in this folder"):
        build([tmp_path / name], tmp_path / "out", BuildSettings())


def test_a_folder_of_others_is_refused_and_a_finished_build_is_replaced_only_when_told(
    tmp_path: Path,
) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.tex").write_text("x")
    for overwrite in (False, True):
        with pytest.raises(DataError, match="not ours"):
            build([SAMPLES], tmp_path / "theirs", BuildSettings(), overwrite=overwrite)
    assert (tmp_path / "theirs" / "thesis.tex").exists()
    build([SAMPLES], tmp_path / "out", BuildSettings())
    with pytest.raises(DataError, match="--overwrite"):
        build([SAMPLES], tmp_path / "out", BuildSettings(seed=1))
    manifest = build([SAMPLES], tmp_path / "out", BuildSettings(seed=1), overwrite=True)
    assert manifest["settings"]["seed"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "theirs"]


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device"), RuntimeError("a bug")]
)
def test_a_build_that_is_stopped_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    added = 0

    def add(self: RowWriter, row: Any) -> None:
        nonlocal added
        added += 1
        if added == 30:
            raise error

    monkeypatch.setattr(RowWriter, "add", add)
    with pytest.raises(type(error)):
        build([SAMPLES], tmp_path / "out", BuildSettings())
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_build_left_is_cleared_by_the_next_one(tmp_path: Path) -> None:
    left = tmp_path / ".out.building-x1"
    left.mkdir()
    with whole_folder(tmp_path / "out", marker=MANIFEST) as folder:
        (folder / MANIFEST).write_text("{}")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_another_process_is_writing_is_refused(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "out", marker=MANIFEST) as folder:
        (folder / MANIFEST).write_text("{}")
        with (
            pytest.raises(DataError, match="another process"),
            whole_folder(tmp_path / "out", marker=MANIFEST),
        ):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == [MANIFEST]


def test_a_folder_that_a_killed_build_was_replacing_comes_back(tmp_path: Path) -> None:
    (tmp_path / ".out.old-x1").mkdir()
    (tmp_path / ".out.old-x1" / MANIFEST).write_text("{}")
    with pytest.raises(DataError, match="finished result"), whole_folder(tmp_path / "out", marker=MANIFEST):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"messages": [{"role": "tool", "content": "x"}]}] * 3, "no row can be used; tool_role: 3"),
        (
            [
                *({"messages": [{"role": "user", "content": f"{i}"}]} for i in range(4)),
                *(
                    {"messages": [{"role": "user", "content": f"{i}"}, {"role": "assistant", "content": "x"}]}
                    for i in range(6)
                ),
            ],
            "40.0%",
        ),
    ],
)
def test_row_h32_general_data_of_which_too_much_is_refused_fails_the_build(
    tmp_path: Path, rows: list[Any], said: str
) -> None:
    general = tmp_path / "general.jsonl"
    general.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with pytest.raises(DataError, match=said):
        build([SAMPLES], tmp_path / "out", BuildSettings(), general=str(general))
    assert not (tmp_path / "out").exists()


def test_a_file_that_changes_during_the_build_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "b.timeline.json"
    text = (SAMPLES / "the-lamp-at-orrin-head.timeline.json").read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    real = build_module.make_splits

    def touch(*args: Any, **kwargs: Any) -> Any:
        path.write_text(text + " ", encoding="utf-8")
        return real(*args, **kwargs)

    monkeypatch.setattr(build_module, "make_splits", touch)
    with pytest.raises(DataError, match="changed while"):
        build([path], tmp_path / "out", BuildSettings())
