"""Which steps become rows, and in which split: the draws of contract sections 2 and 3."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

from data_builders import (
    character_update,
    interaction_gen,
    location_scenario,
    motivation_update,
    next_character,
    scene_cast,
    world_update,
)
from data_builders.splits import Splits, ValidationBy, ends_in_training, tenth, training_scenes
from data_builders.walk import Boundary, InSegment, SceneEnd, Step, rank, walk
from ewtrain.chat import ADAPTERS, Adapter
from ewtrain.errors import DataError
from ewtrain.story import TaskName, Timeline
from ewtrain.tasks import TASKS, ParseError

Mixture = Literal["full", "balanced"]
Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")
NUM_EXAMPLES = 3

_BUILDERS: dict[type, tuple[ModuleType, ...]] = {
    Boundary: (scene_cast, location_scenario, motivation_update),
    InSegment: (next_character, interaction_gen, world_update),
    SceneEnd: (character_update,),
}


def training_steps(timeline: Timeline, splits: Splits) -> Iterator[Step]:
    """Yield every step of a book's training scenes, in story order, whether its source provides it or not."""
    kind = splits.books[timeline.book.book_id]
    num_scenes = training_scenes(kind, len(timeline.scenes))
    for moment in walk(timeline, num_scenes=num_scenes, ends=ends_in_training(kind)):
        for builder in _BUILDERS[type(moment)]:
            yield from builder.steps(moment)


def draw_updates(timeline: Timeline, splits: Splits, seed: int) -> set[str]:
    """Return the ids of the `world_update` rows a book keeps.

    Every changing interaction, and `floor(1.8 * changing + 0.5)` of its other training interactions, ranked
    by (seed, row id): 1.8 is (17,832 - 6,357) / 6,357 of EW Table 8.
    """
    kept: set[str] = set()
    others: list[str] = []
    for step in training_steps(timeline, splits):
        if step.task == "world_update":
            if step.changes_world:
                kept.add(step.id)
            else:
                others.append(step.id)
    num_others = (18 * len(kept) + 5) // 10
    others.sort(key=lambda row_id: rank(seed, "world_update", row_id))
    return kept | set(others[:num_others])


@dataclass
class Dropped:
    """Rows that were not made, by reason, with the first ids of each."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, row_id: str) -> None:
        self.counts[reason] += 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < NUM_EXAMPLES:
            examples.append(row_id)

    def as_json(self) -> dict[str, Any]:
        return {
            reason: {"count": count, "examples": self.examples[reason]}
            for reason, count in sorted(self.counts.items())
        }


def gold_fault(step: Step, inp: Any, target: Any) -> str | None:
    """Return why a row's own answers are rejected by their parser (`rejected_<kind>`), or None.

    DataError if an answer comes back changed: then it is our code that is wrong, and the build stops.
    """
    task = TASKS[step.task]
    try:
        if task.parse(task.format_target(target), inp) != target:
            raise DataError(
                f"{step.id}: the answer changes when it is written and read. Please report this row."
            )
        for answer in task.answers(inp, target)[:-1]:
            if task.format_target(task.parse(answer, inp)) != answer:
                raise DataError(
                    f"{step.id}: an answer changes when it is read and written. Please report this row."
                )
    except ParseError as error:
        return f"rejected_{error.kind}"
    return None


@dataclass
class Plan:
    """What a first pass over the corpus decided; the second pass makes just these rows."""

    seed: int
    splits: Splits
    validation_by: ValidationBy = "scene"
    dropped: Dropped = field(default_factory=Dropped)
    not_drawn: Counter[str] = field(default_factory=Counter)
    updates: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    # A row is held out if its validation key, and kept in `balanced` if its balance key, is at most this.
    last_validation_key: dict[Adapter, int] = field(default_factory=dict)
    last_balance_key: dict[TaskName, int] = field(default_factory=dict)

    def validation_key(self, step: Step) -> int:
        if self.validation_by == "row":
            return rank(self.seed, "validation", step.id)
        return 0 if self.splits.is_validation(step.book_id, step.scene) else 1

    def balance_key(self, step: Step) -> int:
        return rank(self.seed, "balanced", step.id)

    def split_of(self, step: Step) -> Split:
        """Return the split that a step belongs to, whether it becomes a row or not."""
        held_out = self.validation_key(step) <= self.last_validation_key.get(TASKS[step.task].adapter, 0)
        return "validation" if held_out else "train"

    def row_split(self, step: Step) -> Split | None:
        """Return the split whose row a provided task's step becomes; None where it becomes none."""
        if step.id in self.absent or (step.task == "world_update" and step.id not in self.updates):
            return None
        split = self.split_of(step)
        last = self.last_balance_key.get(step.task)
        if split == "train" and last is not None and self.balance_key(step) > last:
            return None
        return split


class Planner:
    """Gathers a Plan book by book; two numbers a row stay in memory."""

    def __init__(self, plan: Plan, mixture: Mixture) -> None:
        self.plan = plan
        self.mixture = mixture
        # The validation keys and the balance keys of each task's rows, in step.
        self._keys: dict[TaskName, tuple[array[int], array[int]]] = {}

    def add(self, timeline: Timeline) -> None:
        plan, provides = self.plan, set(timeline.provides)
        updates = draw_updates(timeline, plan.splits, plan.seed)
        plan.updates |= updates
        for step in training_steps(timeline, plan.splits):
            if step.task not in provides:
                plan.dropped.add("not_in_source", step.id)
            elif step.task == "world_update" and step.id not in updates:
                plan.not_drawn["world_update"] += 1
            elif (fault := step_fault(step)) is not None:
                plan.dropped.add(fault, step.id)
                plan.absent.add(step.id)
            else:
                held_out, balance = self._keys.setdefault(step.task, (array("Q"), array("Q")))
                held_out.append(plan.validation_key(step))
                balance.append(plan.balance_key(step))

    @property
    def num_candidates(self) -> int:
        return sum(len(held_out) for held_out, _ in self._keys.values())

    def finish(self) -> Plan:
        """Settle the draws that need the whole corpus."""
        for adapter in ADAPTERS:
            tasks = [task for task in self._keys if TASKS[task].adapter == adapter]
            if self.plan.validation_by == "row" and tasks:
                held_out_first = sorted(key for task in tasks for key in self._keys[task][0])
                self.plan.last_validation_key[adapter] = held_out_first[tenth(len(held_out_first)) - 1]
            if self.mixture == "balanced":
                self._balance(adapter, tasks)
        return self.plan

    def _balance(self, adapter: Adapter, tasks: list[TaskName]) -> None:
        """Draw every task of an adapter down to its smallest that has rows (EW-B), in train only."""
        last_held_out = self.plan.last_validation_key.get(adapter, 0)
        train = {
            task: sorted(
                balance
                for held_out, balance in zip(*self._keys[task], strict=True)
                if held_out > last_held_out
            )
            for task in tasks
        }
        smallest = min((len(keys) for keys in train.values() if keys), default=0)
        for task, keys in train.items():
            if keys:
                self.plan.last_balance_key[task] = keys[smallest - 1]
                self.plan.not_drawn[task] += len(keys) - smallest


def step_fault(step: Step) -> str | None:
    """Return why a step becomes no row, or None."""
    made = step.make()
    return "not_in_source" if made is None else gold_fault(step, *made)
