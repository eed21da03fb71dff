"""Read, check and write timelines: every fault of a file in one report (contract section 1)."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ewtrain.errors import DataError, Fault
from ewtrain.files import brief, read_json, shape_faults
from ewtrain.story import Timeline
from ewtrain.timeline_check import Report, check_data

SUFFIXES = (".timeline.json", ".timeline.json.gz", ".timeline.json.zst")
MAX_LISTED_FAULTS = 200


def _parse(data: Any, file: str) -> tuple[Timeline | None, Report]:
    if not isinstance(data, dict):
        wrong = f"found {brief(data)} where a timeline object should be"
        return None, Report(file, [Fault(file, "", wrong, "See the format's Timeline object")])
    report = check_data(data, file)
    timeline = None
    try:
        timeline = Timeline.model_validate(data)
    except ValidationError as error:
        report.faults[:0] = shape_faults(error, file, Timeline)
    return (timeline if not report.faults else None), report


def load_timeline(path: Path) -> tuple[Timeline | None, Report]:
    """Return a file's timeline, aliases resolved, and its report; None where the report has faults.

    A file that is no JSON at all raises DataError.
    """
    return _parse(read_json(path), str(path))


def read_timeline(path: Path) -> Timeline:
    """Return a file's timeline; DataError lists every fault of the file."""
    timeline, report = load_timeline(path)
    if timeline is None:
        raise fault_error(report)
    return timeline


def fault_error(report: Report) -> DataError:
    """Return the error that lists a report's faults, the first `MAX_LISTED_FAULTS` by line."""
    shown = report.faults[:MAX_LISTED_FAULTS]
    more = len(report.faults) - len(shown)
    error = DataError.of(
        shown, f"{report.file}: {len(report.faults)} fault(s):" + (f" (first {len(shown)})" if more else "")
    )
    error.faults = tuple(report.faults)
    return error


def check_timeline(timeline: Timeline, file: str = "timeline") -> Report:
    """Return what breaks the contract in a timeline made in code."""
    return _parse(timeline.model_dump(mode="json", exclude_none=True), file)[1]


def write_timeline(timeline: Timeline, path: Path) -> None:
    """Write a timeline, checked first, and whole or not at all."""
    report = check_timeline(timeline, str(path))
    if report.faults:
        raise fault_error(report)
    text = json.dumps(timeline.model_dump(mode="json", exclude_none=True), ensure_ascii=False, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.chmod(aside, 0o644)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
