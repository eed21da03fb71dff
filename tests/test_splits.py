"""Which books and scenes train, validate and test (contract section 4)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_builders.splits import (
    draw_books,
    draw_validation,
    make_splits,
    test_scenes,
    training_scenes,
    training_units,
)
from ewtrain.errors import DataError

test_scenes.__test__ = False  # type: ignore[attr-defined]  # a function of ours, not a test


@given(st.integers(10, 90), st.integers(0, 5))
def test_a_tenth_is_ood_and_half_of_the_rest_train_only(num_books: int, seed: int) -> None:
    kinds = Counter(draw_books([f"b{i}" for i in range(num_books)], seed).values())
    num_ood = -(-num_books // 10)
    assert kinds["ood"] == num_ood
    assert kinds["train_only"] == (num_books - num_ood) // 2
    assert kinds["train_test"] == num_books - num_ood - kinds["train_only"]


def test_57_books_split_as_in_the_paper() -> None:
    kinds = Counter(draw_books([f"b{i}" for i in range(57)], 0).values())
    assert kinds == {"ood": 6, "train_only": 25, "train_test": 26}


def test_below_ten_books_all_are_train_test() -> None:
    assert set(draw_books([f"b{i}" for i in range(9)], 0).values()) == {"train_test"}


@given(st.integers(1, 300))
def test_training_and_test_scenes_are_integer_shares_and_never_overlap(num_scenes: int) -> None:
    assert training_scenes("train_only", num_scenes) == num_scenes
    assert training_scenes("ood", num_scenes) == 0
    trained = training_scenes("train_test", num_scenes)
    assert trained == 7 * num_scenes // 10
    assert list(test_scenes("train_only", num_scenes)) == []
    assert list(test_scenes("train_test", num_scenes)) == list(range(trained, num_scenes - 1))
    assert list(test_scenes("ood", num_scenes)) == list(range(num_scenes - trained, num_scenes - 1))


@given(st.lists(st.integers(1, 40), min_size=2, max_size=6), st.integers(0, 3))
def test_validation_is_a_tenth_of_the_training_scenes_halves_up_at_least_one(
    counts: list[int], seed: int
) -> None:
    num_scenes = {f"b{i}": count for i, count in enumerate(counts)}
    books = {book: "train_only" for book in num_scenes}
    units = sum(training_units("train_only", count) for count in counts)
    validation = draw_validation(books, num_scenes, seed, "scene")
    assert sum(map(len, validation.values())) == max(1, (units + 5) // 10)
    assert all(0 <= scene <= num_scenes[book] for book, scenes in validation.items() for scene in scenes)


def test_the_end_of_a_book_counts_as_one_more_scene_only_where_it_is_in_training() -> None:
    assert training_units("train_only", 20) == 21
    assert training_units("train_test", 20) == 14
    assert training_units("ood", 20) == 0


def test_validation_by_book_holds_whole_books_out() -> None:
    num_scenes = {f"b{i}": 5 for i in range(12)}
    books = dict.fromkeys(num_scenes, "train_only")
    validation = draw_validation(books, num_scenes, 0, "book")
    assert len(validation) == 1
    assert list(validation.values()) == [[0, 1, 2, 3, 4, 5]]


def test_adding_a_book_changes_no_other_books_rank() -> None:
    few = {f"b{i}": 30 for i in range(3)}
    more = few | {"another": 30}
    before = draw_validation(dict.fromkeys(few, "train_only"), few, 0, "scene")
    after = draw_validation(dict.fromkeys(more, "train_only"), more, 0, "scene")
    for book in few:
        assert set(before.get(book, [])) <= set(after.get(book, [])) or set(after.get(book, [])) <= set(
            before.get(book, [])
        )


NUM = {"a": 10, "b": 10}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"books": {"a": "train_only"}}, "says nothing of b"),
        ({"books": {"a": "train_only", "b": "ood", "c": "ood"}}, "names c"),
        ({"books": {"a": "train_only", "b": "oods"}}, "found 'oods'"),
        (
            {"books": {"a": "train_only", "b": "ood"}, "validation": {"b": [0]}},
            r"validation.b names scene\(s\) \[0\]",
        ),
        ({"books": {"a": "train_test", "b": "ood"}, "validation": {"a": [7]}}, "trains on 0 to 6"),
        ({"book": {}}, "Did you mean 'books'"),
    ],
)
def test_a_splits_file_that_does_not_fit_is_refused(tmp_path: Path, content: object, said: str) -> None:
    (tmp_path / "splits.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(DataError, match=said):
        make_splits(NUM, seed=0, given=tmp_path / "splits.json")


@pytest.mark.parametrize("validation", [{}, {"a": []}])
def test_a_splits_file_with_no_validation_scene_gets_one_drawn(tmp_path: Path, validation: object) -> None:
    given = {"books": {"a": "train_only", "b": "ood"}, "validation": validation}
    (tmp_path / "splits.json").write_text(json.dumps(given), encoding="utf-8")
    assert len(make_splits(NUM, seed=0, given=tmp_path / "splits.json").validation["a"]) == 1


def test_given_validation_scenes_and_another_way_to_draw_them_are_refused_together(tmp_path: Path) -> None:
    given = {"books": {"a": "train_only", "b": "ood"}, "validation": {"a": [3]}}
    (tmp_path / "splits.json").write_text(json.dumps(given), encoding="utf-8")
    with pytest.raises(DataError, match="Remove one of the two"):
        make_splits(NUM, seed=0, by="row", given=tmp_path / "splits.json")
    assert make_splits(NUM, seed=0, given=tmp_path / "splits.json").validation == {"a": [3]}


def test_a_splits_file_may_name_books_that_were_set_aside(tmp_path: Path) -> None:
    given = {"books": {"a": "train_only", "b": "ood", "bad": "ood"}, "validation": {"a": [3], "bad": [1]}}
    (tmp_path / "splits.json").write_text(json.dumps(given), encoding="utf-8")
    splits = make_splits(NUM, seed=0, given=tmp_path / "splits.json", ignore_unknown=True)
    assert splits.books == {"a": "train_only", "b": "ood"} and splits.validation == {"a": [3]}


def test_too_few_training_scenes_are_an_error_not_an_empty_split() -> None:
    with pytest.raises(DataError, match="too few to train"):
        make_splits({"a": 2}, seed=0)
