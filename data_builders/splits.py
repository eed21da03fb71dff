"""Which books and scenes train, validate and test (contract section 4, EW C.3)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from data_builders.walk import rank
from ewtrain.errors import DataError
from ewtrain.files import read_json, shape_faults

BookKind = Literal["train_only", "train_test", "ood"]
ValidationBy = Literal["scene", "row", "book"]
SMALL_CORPUS = 10


class Splits(BaseModel):
    """`splits.json`: what each book is for, and each book's validation scenes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    books: dict[str, BookKind]
    validation: dict[str, list[int]] = {}

    def is_validation(self, book_id: str, scene: int) -> bool:
        return scene in self.validation.get(book_id, ())


def training_scenes(kind: BookKind, num_scenes: int) -> int:
    """Return how many scenes from the start a book trains on."""
    return {"ood": 0, "train_only": num_scenes, "train_test": 7 * num_scenes // 10}[kind]


def ends_in_training(kind: BookKind) -> bool:
    """True where the book's last scene is in training, and so its end-of-book row."""
    return kind == "train_only"


def training_units(kind: BookKind, num_scenes: int) -> int:
    """Return the scenes to hold out from: training scenes, and one more for the end-of-book row."""
    return training_scenes(kind, num_scenes) + ends_in_training(kind)


def test_scenes(kind: BookKind, num_scenes: int) -> range:
    """Return the scenes after which a snapshot may be taken, before their length is looked at."""
    first = {
        "train_only": num_scenes,
        "train_test": 7 * num_scenes // 10,
        "ood": num_scenes - 7 * num_scenes // 10,
    }[kind]
    return range(first, num_scenes - 1)


def tenth(count: int) -> int:
    """Return 10% of a count, halves rounded up, at least one."""
    return max(1, (count + 5) // 10)


def draw_books(book_ids: list[str], seed: int) -> dict[str, BookKind]:
    """Return what each book is for; below ten books every one is `train_test`."""
    if len(book_ids) < SMALL_CORPUS:
        return dict.fromkeys(sorted(book_ids), "train_test")
    shuffled = sorted(book_ids, key=lambda book_id: rank(seed, "book", book_id))
    num_ood = -(-len(shuffled) // 10)
    num_train_only = (len(shuffled) - num_ood) // 2
    kinds: dict[str, BookKind] = {}
    for i, book_id in enumerate(shuffled):
        kinds[book_id] = (
            "ood" if i < num_ood else "train_only" if i < num_ood + num_train_only else "train_test"
        )
    return dict(sorted(kinds.items()))


def draw_validation(
    books: Mapping[str, BookKind], num_scenes: Mapping[str, int], seed: int, by: ValidationBy
) -> dict[str, list[int]]:
    """Return the validation scenes of each book that has some; none for `row`, which draws rows later."""
    units = {book_id: training_units(kind, num_scenes[book_id]) for book_id, kind in books.items()}
    if by == "row":
        return {}
    if by == "book":
        training = sorted((b for b, n in units.items() if n), key=lambda b: rank(seed, "validation", b))
        if len(training) < 2:
            raise DataError(
                f"Validation by book needs two training books, {len(training)} found. Use --validation-by scene."
            )
        held_out = training[: tenth(len(training))]
        return {book_id: list(range(units[book_id])) for book_id in sorted(held_out)}
    scenes = [(book_id, scene) for book_id, count in units.items() for scene in range(count)]
    if len(scenes) < 2:
        raise DataError(
            f"{len(scenes)} training scene(s) in these books: too few to train and to validate on. Add books, "
            "or pass --splits with a book that is train_only."
        )
    scenes.sort(key=lambda key: rank(seed, "validation", *key))
    validation: dict[str, list[int]] = {}
    for book_id, scene in sorted(scenes[: tenth(len(scenes))]):
        validation.setdefault(book_id, []).append(scene)
    return validation


def make_splits(
    num_scenes: Mapping[str, int],
    *,
    seed: int,
    by: ValidationBy = "scene",
    given: Path | None = None,
    ignore_unknown: bool = False,
) -> Splits:
    """Return the splits of a corpus: drawn by the seed, or as a splits file says.

    A file without validation scenes gets them drawn. `ignore_unknown`: the file may name books that were
    set aside.
    """
    if given is None:
        books = draw_books(list(num_scenes), seed)
        return Splits(books=books, validation=draw_validation(books, num_scenes, seed, by))
    splits = read_splits(given, num_scenes, ignore_unknown=ignore_unknown)
    if not splits.validation:
        return Splits(books=splits.books, validation=draw_validation(splits.books, num_scenes, seed, by))
    if by == "row":
        raise DataError(
            f"{given}: names validation scenes, and --validation-by {by} draws others. Remove one of the two."
        )
    return splits


def read_splits(path: Path, num_scenes: Mapping[str, int], *, ignore_unknown: bool = False) -> Splits:
    """Return a splits file that fits a corpus; DataError says where it does not."""
    try:
        splits = Splits.model_validate(read_json(path))
    except ValidationError as error:
        raise DataError.of(shape_faults(error, str(path), Splits)) from None
    missing = sorted(set(num_scenes) - set(splits.books))
    if missing:
        kinds = ", ".join(get_args(BookKind))
        raise DataError(
            f"{path}: says nothing of {', '.join(missing)}. Add each under books, as one of {kinds}."
        )
    unknown = sorted((set(splits.books) | set(splits.validation)) - set(num_scenes))
    if unknown and not ignore_unknown:
        raise DataError(f"{path}: names {', '.join(unknown)}, which the timelines lack. Remove them.")
    books = {book_id: splits.books[book_id] for book_id in sorted(num_scenes)}
    validation = {book_id: sorted(set(scenes)) for book_id, scenes in splits.validation.items() if scenes}
    validation = {book_id: scenes for book_id, scenes in validation.items() if book_id in num_scenes}
    for book_id, scenes in validation.items():
        count = training_units(books[book_id], num_scenes[book_id])
        if wrong := [scene for scene in scenes if not 0 <= scene < count]:
            trains = f"trains on 0 to {count - 1}" if count else "does not train"
            raise DataError(f"{path}: validation.{book_id} names scene(s) {wrong}, and the book {trains}.")
    return Splits(books=books, validation=validation)


def write_splits(splits: Splits, path: Path) -> None:
    path.write_text(json.dumps(splits.model_dump(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
