"""The pictures of a dataset (EW Figures 4, 6 and 7, and the length of a row per task)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_builders.stats_books import Extracted
from data_builders.stats_page import percent, plural
from data_builders.stats_rows import RowCount, TokenSource
from ewtrain.chat import GENERAL
from ewtrain.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from wordcloud import WordCloud

# Okabe and Ito's colours, told apart by every kind of colour sight.
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)
GREY, INK = "#8A8A8A", "#222222"
_DASHES = (0, (2, 1.5))
_ADAPTER_COLOURS = {"world_model": BLUE, "character_agent": VERMILLION}
_LENGTHS, _HISTOGRAMS = "Length of a row per task", "Extracted data at four levels"
_GENRES, _CLOUDS = "Genres", "Dimensions of the open schema"
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.edgecolor": "#777777",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def need_matplotlib() -> None:
    """ConfigError unless what the pictures are drawn with is installed."""
    try:
        import matplotlib  # noqa: F401
        import wordcloud  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"{error.name} is not installed; the pictures need it: pip install 'ewtrain[stats]'."
        ) from None


def draw_pictures(
    folder: Path, count: RowCount, tokens: TokenSource | None, extracted: Extracted | None
) -> tuple[dict[str, str], dict[str, str]]:
    """Draw every picture that there is data for; return their files, and the others with the reason."""
    import matplotlib

    pictures: dict[str, str] = {}
    left_out: dict[str, str] = {}

    def save(name: str, file: str, figure: Figure) -> None:
        figure.savefig(
            folder / file,
            dpi=130,
            facecolor="white",
            bbox_inches="tight",
            pad_inches=0.2,
            metadata={"Software": None},
        )
        pictures[name] = file

    with matplotlib.rc_context(_STYLE):
        if lengths := count.lengths():
            unit, sample = "characters" if tokens is None else "tokens", ""
            if tokens is not None and tokens.sample_share is not None:
                sample = f", a {percent(tokens.sample_share)} sample"
            rows = sum(cell.rows for cell in count.cells.values())
            save(_LENGTHS, "lengths.png", _draw_lengths(lengths, unit, sample, rows))
        else:
            left_out[_LENGTHS] = "no row could be measured."
        if extracted is None:
            for name in (_HISTOGRAMS, _GENRES, _CLOUDS):
                left_out[name] = "it is drawn from the timelines; name them with --timelines."
            return pictures, left_out
        save(_HISTOGRAMS, "extracted.png", _draw_extracted(extracted))
        if any(coarse for coarse, _ in extracted.genres):
            save(_GENRES, "genres.png", _draw_genres(extracted))
        else:
            left_out[_GENRES] = "no book has a genre."
        clouds = {kind: held for kind, held in extracted.dimension_counts().items() if held}
        drawable = {kind: _drawable(held) for kind, held in clouds.items()}
        drawable = {kind: held for kind, held in drawable.items() if held}
        undrawn = sum(map(len, clouds.values())) - sum(map(len, drawable.values()))
        if drawable:
            save(_CLOUDS, "dimensions.png", _draw_clouds(drawable, extracted))
        if not clouds:
            left_out[_CLOUDS] = "no profile and no global state has `**Dimension**` headings."
        elif undrawn:
            left_out[f"{_CLOUDS}, {undrawn} of them"] = (
                "the font has no letters for them; stats.json has all."
            )
    return pictures, left_out


def _draw_lengths(lengths: Mapping[tuple[str, str], np.ndarray], unit: str, sample: str, rows: int) -> Figure:
    """One row of a ridge a task, on a common logarithmic axis."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low = max(1, min(int(values.min()) for values in lengths.values()))
    high = max(int(values.max()) for values in lengths.values())
    edges = np.geomspace(low / 1.15, high * 1.15, 56)
    figure = Figure(figsize=(11, 1.6 + 0.72 * len(lengths)), layout="constrained")
    axes = figure.add_subplot()
    for i, ((adapter, task), values) in enumerate(lengths.items()):
        base = len(lengths) - 1 - i
        heights = np.histogram(values, edges)[0]
        colour = _ADAPTER_COLOURS[adapter]
        general = task == GENERAL
        axes.axhline(base, color="#DDDDDD", linewidth=0.8, zorder=0)
        axes.stairs(
            base + 0.82 * heights / heights.max(),
            edges,
            baseline=base,
            fill=True,
            facecolor=colour,
            alpha=0.45 if general else 0.85,
            hatch="////" if general else None,
            edgecolor="white" if general else colour,
        )
        median, p95 = np.percentile(values, [50, 95])
        axes.plot([median, median], [base, base + 0.86], color=INK, linewidth=1.8)
        axes.plot([p95, p95], [base, base + 0.5], color=INK, linewidth=1.4, linestyle=_DASHES)
        axes.text(
            1.012, base + 0.18, f"{_short(median)} · {_short(p95)} · {_short(values.max())}",
            transform=axes.get_yaxis_transform(), va="bottom", fontsize=10,
        )  # fmt: skip
    axes.text(
        1.012, len(lengths) - 0.02, "median · p95 · max", transform=axes.get_yaxis_transform(), va="bottom",
        fontsize=10, color="#555555",
    )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(-0.15, len(lengths) + 0.1)
    axes.set_yticks(
        [len(lengths) - 1 - i + 0.3 for i in range(len(lengths))],
        [f"{task}\nn = {len(values):,}" for (_, task), values in lengths.items()],
    )
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.grid(axis="x", color="#EEEEEE")
    axes.set_xlabel(f"{unit.capitalize()} per row{sample} (logarithmic; each task scaled to its own peak)")
    handles: list[Any] = [Patch(facecolor=colour, label=name) for name, colour in _ADAPTER_COLOURS.items()]
    handles.append(Line2D([], [], color=INK, linewidth=1.8, label="median"))
    handles.append(Line2D([], [], color=INK, linewidth=1.4, linestyle=_DASHES, label="p95"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    measured = sum(len(values) for values in lengths.values())
    of = f"{measured:,} rows" if measured == rows else f"{measured:,} of {rows:,} rows{sample}"
    _title(figure, f"{unit.capitalize()} per row and task, n = {of}")
    return figure


def _short(value: float) -> str:
    return f"{value / 1000:,.1f}k" if value >= 1000 else f"{value:,.0f}"


def _draw_extracted(extracted: Extracted) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    figure = Figure(figsize=(15, 7.6), layout=ConstrainedLayoutEngine(hspace=0.08, wspace=0.04))
    levels = dict.fromkeys(("scenes", "characters", "locations"), BLUE)
    levels |= {"interactions": GREEN, "cast size": GREEN, "profile updates": PURPLE}
    levels |= {"global updates": ORANGE, "location updates": ORANGE}
    for i, (name, values) in enumerate(extracted.values.items()):
        axes: Axes = figure.add_subplot(2, 4, i + 1)
        what, _, holder = name.partition(" per ")
        axes.set_title(f"{name.capitalize()}\nn = {plural(len(values), holder)}", loc="left")
        axes.set_xlabel(what.capitalize())
        axes.set_ylabel(f"{holder.capitalize()}s")
        if not values:
            axes.text(
                0.5, 0.5, "no source records this", transform=axes.transAxes, ha="center", color="#555555"
            )
            continue
        axes.hist(values, bins=_bins(values), color=levels[what], edgecolor="white", linewidth=0.8)
        mean, median = float(np.mean(values)), float(np.median(values))
        axes.axvline(mean, color=INK, linewidth=1.8, label=f"mean {mean:,.1f}")
        axes.axvline(median, color=INK, linewidth=1.8, linestyle=_DASHES, label=f"median {median:,.1f}")
        axes.legend(frameon=True, framealpha=0.9, edgecolor="none", fontsize=9, loc="upper right")
        low, high = min(values), max(values)
        if high - low < 6:
            axes.set_xlim(low - 0.5 - (6 - high + low) / 2, high + 0.5 + (6 - high + low) / 2)
            axes.set_xticks(range(low, high + 1))
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_ylim(0, axes.get_ylim()[1] * 1.18)
        axes.grid(axis="y", color="#EEEEEE")
    books = plural(extracted.num_books, "book")
    _title(figure, f"Extracted data per book, scene, character and world, n = {books}")
    return figure


def _bins(values: Sequence[int]) -> list[float]:
    """Return edges of at most thirty equal bins that no whole number falls between."""
    low, high = min(values), max(values)
    width = max(1, -(-(high - low + 1) // 30))
    return [edge - 0.5 for edge in range(low, high + width + 1, width)]


def _draw_genres(extracted: Extracted) -> Figure:
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure

    tree = extracted.genre_counts()
    books = extracted.num_books
    hues = cycle((BLUE, ORANGE, GREEN, PURPLE, VERMILLION, SKY))
    colours = dict(zip((name for name in tree if name), hues, strict=False))
    colours[""] = GREY
    figure = Figure(figsize=(11, 8))
    axes = figure.add_subplot()
    inner, outer, outer_colours, labels = [], [], [], []
    for coarse, fine in tree.items():
        inner.append(sum(fine.values()))
        red, green, blue = to_rgb(colours[coarse])
        for i, (name, n) in enumerate(fine.items()):
            paler = 0.35 + 0.35 * (i % 2)
            outer.append(n)
            outer_colours.append(
                (red + (1 - red) * paler, green + (1 - green) * paler, blue + (1 - blue) * paler)
            )
            labels.append(f"{name or 'not given'} ({n})")
    edge = {"edgecolor": "white", "linewidth": 2}
    coarse_wedges = axes.pie(
        inner, radius=0.72, colors=[colours[name] for name in tree], startangle=90, counterclock=False,
        wedgeprops={"width": 0.32, **edge},
    )[0]  # fmt: skip
    axes.pie(
        outer, radius=1, colors=outer_colours, labels=labels, rotatelabels=len(outer) > 12, startangle=90,
        counterclock=False, labeldistance=1.04, wedgeprops={"width": 0.27, **edge}, textprops={"fontsize": 10},
    )  # fmt: skip
    axes.text(
        0,
        0,
        plural(books, "book").replace(" ", "\n"),
        ha="center",
        va="center",
        fontsize=15,
        weight="bold",
    )
    axes.legend(
        coarse_wedges,
        [f"{name or 'not given'}: {n} ({n / books:.1%})" for name, n in zip(tree, inner, strict=True)],
        title="Inner ring: coarse genre", loc="center left", bbox_to_anchor=(1.3, 0.5), frameon=False,
        alignment="left",
    )  # fmt: skip
    _title(figure, f"Genres, coarse and fine, n = {plural(books, 'book')}")
    return figure


def _font_path() -> str:
    from matplotlib.font_manager import findfont

    return str(findfont("DejaVu Sans"))


def _drawable(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the names that the font of the pictures has every letter of."""
    from matplotlib.ft2font import FT2Font

    font = FT2Font(_font_path())
    return {name: n for name, n in counts.items() if all(font.get_char_index(ord(c)) for c in name)}


def _draw_clouds(clouds: Mapping[str, Mapping[str, int]], extracted: Extracted) -> Figure:
    from matplotlib.figure import Figure

    titles = {"profile": ("Character profiles", "character"), "global_state": ("Global world states", "book")}
    figure = Figure(figsize=(8 * len(clouds), 6), layout="constrained")
    for i, (kind, counts) in enumerate(clouds.items()):
        cloud = _cloud(counts)
        axes = figure.add_subplot(1, len(clouds), i + 1)
        axes.imshow(cloud.to_array(), interpolation="bilinear")
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_color("#DDDDDD")
            spine.set_visible(True)
        title, holder = titles[kind]
        shown, known = len(cloud.words_), len(extracted.holders[kind])
        of = f"{known:,}" if shown == known else f"{shown:,} of {known:,}"
        n = plural(extracted.num_holders[kind], holder)
        axes.set_title(f"{title}: {of} dimensions, n = {n}", fontsize=13, loc="left")
    _title(figure, "Dimensions of the open schema; the larger, the more characters, or books, have it")
    return figure


def _cloud(counts: Mapping[str, int]) -> WordCloud:
    """Return a cloud of the most frequent names in which equal counts have equal sizes, if they fit so."""
    from wordcloud import WordCloud

    inks = dict(zip(counts, cycle(("#00507D", "#9A4300", "#00674B", "#8A3A66", "#444444")), strict=False))
    most = dict(list(counts.items())[:100])
    for largest in (100, 76, 58, 44, 34):
        cloud = WordCloud(
            width=1200, height=800, background_color="white", font_path=_font_path(), prefer_horizontal=1.0,
            relative_scaling=0.6, max_words=len(most), min_font_size=12, max_font_size=largest, font_step=4,
            margin=10, random_state=0, color_func=lambda word, **_: inks[word],
        ).generate_from_frequencies(most)  # fmt: skip
        sizes: dict[float, set[int]] = {}
        for (_, share), size, *_ in cloud.layout_:
            sizes.setdefault(share, set()).add(size)
        if len(cloud.layout_) == len(most) and all(len(found) == 1 for found in sizes.values()):
            break
    return cloud


def _title(figure: Figure, text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontsize=14, weight="bold")
