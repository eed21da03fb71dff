"""The `ewtrain` command: the roof over every folder, importing each only when it is needed."""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ewtrain.errors import DataError, EwtrainError

if TYPE_CHECKING:
    from rich.console import Console

    from ewtrain.data.tokenize import ChatTokenizer

app = typer.Typer(
    name="ewtrain",
    help="Train and use LoRA adapters that play a story's world and its characters.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
imports = typer.Typer(help="Turn other systems' files into timelines.", no_args_is_help=True)
app.add_typer(imports, name="import")

Out = Annotated[Path, typer.Option("--out", help="Folder to write.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result in that folder.")]


INTERRUPTED = 130

# What a path or a disk can do to any command; other system errors are ours to explain, with their traceback.
_USERS_OS_ERRORS = {
    errno.ENOSPC: "the disk is full: free space",
    errno.EDQUOT: "the disk quota is used up: free space",
    errno.EACCES: "no right to read or write it",
    errno.EROFS: "it lies on a read-only disk",
    errno.EEXIST: "something of that name is in the way",
    errno.ENOENT: "no such file or folder",
    errno.ENOTDIR: "a file stands where a folder should be",
    errno.EISDIR: "it is a folder",
}


def main() -> None:
    """Run the command; what a user can mend ends in one clear message and exit code 1."""
    for stream in (sys.stdout, sys.stderr):  # a file's name may hold bytes that no terminal can show
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that unfinished folders go
    try:
        app()
    except EwtrainError as error:
        _fail(str(error))
    except SystemExit as end:
        if end.code == INTERRUPTED:
            print("Stopped: nothing unfinished was left that looks finished.", file=sys.stderr)
        raise
    except OSError as error:
        if error.errno not in _USERS_OS_ERRORS or (error.filename is None and error.errno != errno.ENOSPC):
            raise
        what = _USERS_OS_ERRORS[error.errno]
        where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        _fail(f"{where}{what}. Nothing was finished; mend that or choose another path, and run again.")


def _fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(1)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


class _Bar:
    """A progress bar on standard error, one task a stage."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total)
        self._progress.update(self._tasks[stage], completed=done, total=total)


@app.command()
def validate(
    paths: Annotated[list[Path], typer.Argument(help="Timeline files, or folders of them.")],
    notices: Annotated[bool, typer.Option(help="List what is worth a look, too.")] = False,
) -> None:
    """Check timelines: every fault of every file, with its place and what would be right."""
    from data_builders.timelines import check_files, find_timelines

    console, num_bad, num_notices = _console(), 0, 0

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    for path, timeline, report in check_files(find_timelines(paths)):
        num_notices += len(report.notices)
        if timeline is None:
            num_bad += 1
            say(f"{path}: {len(report.faults)} fault(s), {len(report.notices)} notice(s)")
        else:
            turns = sum(len(scene.interactions) for scene in timeline.scenes)
            say(
                f"{path}: good, {len(timeline.scenes)} scenes, {turns} interactions, "
                f"{len(timeline.characters)} characters, {len(timeline.locations)} locations, "
                f"{len(report.notices)} notice(s)"
            )
        for found in [*report.faults, *(report.notices if notices else [])]:
            say("  " + str(found).removeprefix(f"{path}: "))
    if num_notices and not notices:
        say(f"{num_notices} notice(s) are worth a look: pass --notices to list them.")
    if num_bad:
        raise DataError(
            f"{num_bad} timeline file(s) have faults; see above. docs/contract.md describes the format."
        )


@imports.command("coser")
def import_coser(
    paths: Annotated[list[Path], typer.Argument(help="CoSER's book files (*.json), or folders of them.")],
    out: Out,
    book_id: Annotated[str | None, typer.Option(help="Id of the book; for one file only.")] = None,
    title: Annotated[str | None, typer.Option(help="Title of the book; for one file only.")] = None,
    author: Annotated[str | None, typer.Option(help="Author of the book; for one file only.")] = None,
    profiles_as_initial: Annotated[
        bool, typer.Option(help="Take CoSER's profiles as initial ones. They know the whole book: spoilers.")
    ] = False,
) -> None:
    """Turn CoSER's books into timelines; what CoSER lacks is said, never invented."""
    from data_builders.importers.coser import import_coser as read_coser
    from ewtrain.timeline_file import write_timeline

    files = [file for path in paths for file in (sorted(path.glob("*.json*")) if path.is_dir() else [path])]
    if not files:
        raise DataError("No *.json file in these folders. Name CoSER's book files.")
    if len(files) > 1 and (book_id or title or author):
        raise DataError("--book-id, --title and --author name one book. Import the files one by one.")
    console = _console()
    written: dict[str, Path] = {}
    books = [
        read_coser(f, book_id=book_id, title=title, author=author, profiles_as_initial=profiles_as_initial)
        for f in files
    ]
    for file, book in zip(files, books, strict=True):
        name = book.timeline.book.book_id
        if name in written:
            raise DataError(
                f"{file} and {written[name]} both give the book id {name!r}. Import one with --book-id."
            )
        written[name] = file
    for book in books:
        path = out / f"{book.timeline.book.book_id}.timeline.json"
        write_timeline(book.timeline, path)
        console.print(str(book.report), markup=False, soft_wrap=True)
        console.print(f"Written: {path}", markup=False, soft_wrap=True)


@app.command()
def build(
    timelines: Annotated[list[Path], typer.Argument(help="Timeline files, or folders of them.")],
    out: Out,
    general: Annotated[
        str | None,
        typer.Option(
            help="General chat data: a Hub id such as allenai/tulu-3-sft-mixture, a file or a folder."
        ),
    ] = None,
    mixture: Annotated[
        Literal["full", "balanced"],
        typer.Option(help="Natural task distribution (EW-F), or all tasks alike (EW-B)."),
    ] = "full",
    splits: Annotated[
        Path | None, typer.Option(help="A splits.json to follow instead of drawing one.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Every draw comes from it.")] = 0,
    validation_by: Annotated[
        Literal["scene", "row", "book"], typer.Option(help="What is held out whole; the paper splits by row.")
    ] = "scene",
    drop_share_limit: Annotated[
        float, typer.Option(help="Share of rejected rows at which the build fails.")
    ] = 0.01,
    general_drop_share_limit: Annotated[
        float, typer.Option(help="Share of refused general rows, repeats aside, at which the build fails.")
    ] = 0.1,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Set bad timelines aside instead of failing.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Build rows for both adapters, splits, snapshots and a manifest from timelines."""
    from data_builders.build import BuildSettings
    from data_builders.build import build as run_build

    settings = BuildSettings(
        seed=seed,
        mixture=mixture,
        validation_by=validation_by,
        drop_share_limit=drop_share_limit,
        general_drop_share_limit=general_drop_share_limit,
        skip_bad=skip_bad,
    )
    with _Bar() as bar:
        manifest = run_build(
            timelines, out, settings, general=general, splits_file=splits, overwrite=overwrite, progress=bar
        )
    print_build(manifest, out)


def print_build(manifest: dict[str, Any], out: Path) -> None:
    """Print what a build made, and what a reader should know of it."""
    from rich.table import Table

    from data_builders.build_report import sentences

    console = _console()
    table = Table("adapter", "task", title=f"Rows in {out}", title_justify="left")
    for split in ("train", "validation"):
        table.add_column(split, justify="right")
    table.add_column("assistant turns", justify="right")
    for adapter, by_split in manifest["counts"].items():
        for task in dict.fromkeys(task for by_task in by_split.values() for task in by_task):
            counts = [by_split.get(split, {}).get(task, {}) for split in ("train", "validation")]
            rows = [f"{count.get('rows', 0):,}" for count in counts]
            table.add_row(
                adapter, task, *rows, f"{sum(count.get('assistant_turns', 0) for count in counts):,}"
            )
    console.print(table)
    snapshots = manifest["snapshots"]
    console.print(
        f"Snapshots: {snapshots['id']} id, {snapshots['ood']} ood. Books: {len(manifest['books'])}."
    )
    for sentence in sentences(manifest):
        console.print(f"- {sentence}", markup=False, soft_wrap=True)


def _tokenizer(model: str) -> ChatTokenizer:
    """Return the tokenizer and chat template with which a recipe trains."""
    from ewtrain.configs import load_config
    from ewtrain.train.model import load_tokenizer, resolve_model

    config = load_config(model, adapter="world_model")
    return load_tokenizer(resolve_model(config.base_model, config.base_revision), config.chat_template)


@app.command()
def show(
    data: Annotated[Path, typer.Argument(help="A folder that `ewtrain build` made.")],
    row_id: Annotated[
        str | None, typer.Option("--id", help="Id of the row; without it, one row of each task.")
    ] = None,
    adapter: Annotated[
        Literal["world_model", "character_agent"] | None, typer.Option(help="Where to look.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Show the tokens of this model.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page instead; one row only.")] = None,
) -> None:
    """Show rows as the model reads them, supervised tokens in colour."""
    from ewtrain.data.show import find_row, first_rows, row_html, show_row

    rows = [find_row(data, row_id, adapter)] if row_id is not None or adapter else first_rows(data)
    tokenizer = _tokenizer(model) if model else None
    if html is not None:
        html.write_text(row_html(rows[0], tokenizer), encoding="utf-8")
        _console().print(f"{html}: {rows[0].id}", markup=False, soft_wrap=True)
        return
    console = _console()
    for row in rows:
        console.print(show_row(row, tokenizer))


@app.command()
def stats(
    data: Annotated[Path, typer.Argument(help="A folder that `ewtrain build` made.")],
    model: Annotated[
        str | None, typer.Option(help="Count the tokens of this model; characters without it.")
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Tokenise every row instead of a 5% sample.")
    ] = False,
    timelines: Annotated[
        list[Path] | None,
        typer.Option(help="The timelines of the build, for the pictures of what was extracted."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; DATA/stats by default.")] = None,
) -> None:
    """Write the paper's Tables 6 and 8 for this corpus, the realised mixture, and pictures."""
    from data_builders.stats import write_stats

    with _Bar() as bar:
        written = write_stats(
            data,
            out,
            tokenizer=_tokenizer(model) if model else None,
            exact=exact,
            timelines=timelines,
            progress=bar,
        )
    folder, console = out or data / "stats", _console()
    console.print(
        f"{folder / 'stats.md'}, stats.json and {len(written.pictures)} pictures",
        markup=False,
        soft_wrap=True,
    )
    for name, reason in written.left_out.items():
        console.print(f"- no {name}: {reason}", markup=False, soft_wrap=True)


@app.command()
def export(
    data: Annotated[Path, typer.Argument(help="A folder that `ewtrain build` made.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write; DATA/export by default.")] = None,
    formats: Annotated[
        str, typer.Option(help="Which, with commas between: jsonl, sharegpt.")
    ] = "jsonl,sharegpt",
    overwrite: Overwrite = False,
) -> None:
    """Write rows as JSON Lines, and as ShareGPT with the entry that LLaMA-Factory reads."""
    from data_builders.export import export as run_export
    from data_builders.export import sentences

    out = out or data / "export"
    with _Bar() as bar:
        written = run_export(data, out, formats=formats.split(","), overwrite=overwrite, progress=bar)
    console = _console()
    for file in written:
        console.print(f"{out / file.file}: {file.rows:,} rows", markup=False, soft_wrap=True)
    for sentence in sentences(written):
        console.print(f"- {sentence}", markup=False, soft_wrap=True)


@app.command()
def sft(
    adapter: Annotated[
        Literal["world_model", "character_agent"], typer.Option(help="Which adapter to train.")
    ],
    model: Annotated[
        str, typer.Option(help="A recipe's name (qwen2.5-7b, smollm2-135m, tiny ...), a Hub id or a folder.")
    ],
    data: Annotated[Path, typer.Option(help="A folder that `ewtrain build` made.")],
    out: Out,
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings, over the recipe's.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, over all others.")
    ] = None,
) -> None:
    """Train one adapter by LoRA SFT."""
    from ewtrain.configs import load_config
    from ewtrain.files import dataset_manifest

    settings = load_config(model, config, overrides or [], adapter=adapter)  # before the slow imports
    dataset_manifest(data)

    from ewtrain.train.sft import train_sft

    train_sft(settings, data, out)


@app.command()
def demo(
    model: Annotated[
        str, typer.Option(help="smollm2-135m, or tiny for seconds instead of minutes.")
    ] = "smollm2-135m",
    out: Annotated[Path, typer.Option(help="Folder for everything the demo makes.")] = Path("runs/demo"),
) -> None:
    """The whole path, small, on this machine: rows, a falling loss, two adapters, a turn of each."""
    from ewtrain.demo import run_demo

    run_demo(model, out)


@app.command()
def doctor() -> None:
    """Say what this machine can run, and what is missing."""
    from ewtrain.doctor import diagnose

    if not diagnose(_console()):
        raise typer.Exit(1)


if __name__ == "__main__":
    main()
