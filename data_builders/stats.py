"""What is in a dataset: tables beside the paper's, and pictures (EW Tables 6 and 8, Figures 4 to 7).

Everything is counted from the rows and must equal what the manifest counts. Tokens need a tokenizer; where
they come from a sample, every heading says so. What was extracted from the books needs their timelines.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from data_builders.build import Progress, manifest_hash, read_manifest
from data_builders.pictures import draw_pictures, need_matplotlib
from data_builders.stats_books import Extracted, Spread
from data_builders.stats_page import markdown
from data_builders.stats_rows import (
    LengthLine,
    MixtureLine,
    RowCount,
    TokenSource,
    count_rows,
    count_snapshots,
)
from data_builders.write import whole_folder
from ewtrain.errors import ConfigError
from ewtrain.files import write_json

if TYPE_CHECKING:
    from ewtrain.data.tokenize import ChatTokenizer


class Stats(BaseModel, frozen=True):
    """What `stats.json` holds."""

    manifest_hash: str
    mixture: str
    tokens: TokenSource | None
    overview: dict[str, int | None]
    mixture_lines: list[MixtureLine]
    lengths: list[LengthLine]
    extracted: dict[str, Spread] | None
    dimensions: dict[str, dict[str, int]] | None
    genres: dict[str, dict[str, int]] | None
    pictures: dict[str, str]
    left_out: dict[str, str]


def write_stats(
    dataset: Path,
    out: Path | None = None,
    *,
    tokenizer: ChatTokenizer | None = None,
    exact: bool = False,
    sample_share: float = 0.05,
    timelines: Sequence[Path] | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> Stats:
    """Write `stats.md`, `stats.json` and pictures to `<dataset>/stats` or `out`, and return what they say.

    DataError if the rows are not those that the manifest counts, or the timelines not those it was built
    from. An earlier result in that folder is replaced.
    """
    if not 0 < sample_share <= 1:
        raise ConfigError(f"sample_share is {sample_share}; it is a share of the rows, above 0 and up to 1.")
    need_matplotlib()
    manifest = read_manifest(dataset)
    count = count_rows(dataset, manifest, tokenizer, None if exact else sample_share, progress)
    snapshots = count_snapshots(dataset, manifest)
    extracted = Extracted.read(timelines, manifest, progress) if timelines is not None else None
    tokens = count.token_source()
    with whole_folder(out or dataset / "stats", marker="stats.json", overwrite=True) as folder:
        pictures, left_out = draw_pictures(folder, count, tokens, extracted)
        stats = Stats(
            manifest_hash=manifest_hash(dataset),
            mixture=manifest["settings"]["mixture"],
            tokens=tokens,
            overview=_overview(manifest, count, snapshots, extracted),
            mixture_lines=count.mixture_lines(),
            lengths=count.length_lines(),
            extracted=extracted.spreads() if extracted is not None else None,
            dimensions=extracted.dimension_counts() if extracted is not None else None,
            genres=extracted.genre_counts() if extracted is not None else None,
            pictures=pictures,
            left_out=left_out,
        )
        write_json(folder / "stats.json", stats.model_dump(mode="json"))
        (folder / "stats.md").write_text(markdown(stats), encoding="utf-8")
    return stats


def _overview(
    manifest: dict[str, Any], count: RowCount, snapshots: dict[str, int], extracted: Extracted | None
) -> dict[str, int | None]:
    books = manifest["books"].values()
    return {
        "books": len(books),
        "scenes": sum(book["scenes"] for book in books),
        "interactions": sum(extracted.values["interactions per scene"]) if extracted else None,
        "unique characters": sum(extracted.values["characters per book"]) if extracted else None,
        "unique locations": sum(extracted.values["locations per book"]) if extracted else None,
        "task rows, train and validation": count.total(general=False),
        "task rows, train": count.total("train", general=False),
        "task rows, validation": count.total("validation", general=False),
        "general rows, train and validation": count.total(general=True),
        "snapshots, id": snapshots["id"],
        "snapshots, ood": snapshots["ood"],
    }
