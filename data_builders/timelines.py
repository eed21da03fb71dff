"""The timeline files of a corpus: found, read one at a time, and never silently thinned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ewtrain.errors import DataError, Fault
from ewtrain.files import file_hash
from ewtrain.story import Timeline
from ewtrain.timeline_check import Report
from ewtrain.timeline_file import SUFFIXES, load_timeline


def find_timelines(paths: Iterable[Path]) -> list[Path]:
    """Return the timeline files that paths name: files as they are, folders searched with their subfolders."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.name.endswith(SUFFIXES) and p.is_file())
            if not inside:
                raise DataError(
                    f"{path}: no timeline in this folder. Its files must end in {' or '.join(SUFFIXES)}."
                )
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise DataError(f"{path}: no such file or folder. Check the path.")
    if not found:
        raise DataError("No timeline named. Give timeline files, or a folder that holds them.")
    return list({path.resolve(): path for path in found}.values())


@dataclass
class Corpus:
    """The readable books of some files, and what is wrong with the others."""

    paths: dict[str, Path] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    num_scenes: dict[str, int] = field(default_factory=dict)
    provides: dict[str, list[str]] = field(default_factory=dict)
    notices: list[Fault] = field(default_factory=list)
    bad: dict[str, list[Fault]] = field(default_factory=dict)

    def read(self, book_id: str) -> Timeline:
        """Return a book that was read before; DataError if its file has changed meanwhile."""
        path = self.paths[book_id]
        timeline, _ = load_timeline(path)
        if timeline is None or file_hash(path) != self.hashes[book_id]:
            raise DataError(f"{path}: the file changed while it was being built from. Run the build again.")
        return timeline


def check_files(paths: Iterable[Path]) -> Iterator[tuple[Path, Timeline | None, Report]]:
    """Yield every file with its timeline (None: bad) and report; a file that is no JSON is a fault, too."""
    owners: dict[str, Path] = {}
    for path in paths:
        try:
            timeline, report = load_timeline(path)
        except DataError as error:
            yield path, None, Report(str(path), list(error.faults))
            continue
        if timeline is not None:
            owner = owners.setdefault(timeline.book.book_id, path)
            if owner != path:
                wrong = f"{timeline.book.book_id!r} is also the id of {owner}"
                report.faults.append(Fault(str(path), "book.book_id", wrong, "Give each book its own id"))
                timeline = None
        yield path, timeline, report


def read_corpus(paths: Iterable[Path], *, skip_bad: bool = False) -> Corpus:
    """Return a checked corpus, books in order of their ids; no book stays in memory.

    DataError lists the faults of every bad file, unless `skip_bad` sets such files aside.
    """
    corpus = Corpus()
    for path, timeline, report in check_files(find_timelines(paths)):
        corpus.notices += report.notices
        if timeline is None:
            corpus.bad[str(path)] = report.faults
            continue
        book_id = timeline.book.book_id
        corpus.paths[book_id] = path
        corpus.hashes[book_id] = file_hash(path)
        corpus.num_scenes[book_id] = len(timeline.scenes)
        corpus.provides[book_id] = list(timeline.provides)
    if corpus.bad and not skip_bad:
        faults = [fault for listed in corpus.bad.values() for fault in listed]
        raise DataError.of(
            faults,
            f"{len(corpus.bad)} bad timeline file(s); mend them, or pass --skip-bad to set them aside:",
        )
    if not corpus.paths:
        raise DataError("Every timeline file is bad: there is nothing to build from.")
    corpus.paths = dict(sorted(corpus.paths.items()))
    return corpus
