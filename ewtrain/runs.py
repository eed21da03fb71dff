"""A run's folder: what was asked, with which code, how it went, and whether it finished.

`run.json` says `running`, then `finished`, `failed` or `interrupted`. What a run is for (an adapter) is
written into `<run>/unfinished` and moved beside run.json only when all of it is there, so a folder never
looks finished before it is.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import yaml
from pydantic import BaseModel

import ewtrain
from ewtrain.errors import ConfigError, EwtrainError
from ewtrain.files import sync, write_json

_PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "tokenizers",
    "datasets",
    "safetensors",
    "flash-attn",
)
_UNFINISHED = "unfinished"
_KEPT = ("prepared", "run.lock")  # of a run that did not finish: prepared data is found again by its key


def start_run(out: Path, config: BaseModel) -> Run:
    """Return the run of an empty, new or unfinished folder; refuse any other.

    Writes `config.yaml` (all settings, resolved) and `run.json` (command, code revision, versions). No
    environment variable is recorded: keys and tokens live there.
    """
    out = out.expanduser()
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file. Choose a folder for --out.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be made ({error.strerror}). Choose another --out.") from error
    status = run_status(out)
    if status == "finished":
        raise ConfigError(f"{out} holds a finished run. Choose another --out, or delete the folder.")
    if status is None and any(out.iterdir()):
        raise ConfigError(f"{out} is not empty and holds no run of ewtrain. Choose another --out.")
    lock = _lock(out)
    for path in out.iterdir():
        if path.name not in _KEPT:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    run = Run(out, lock)
    (out / "config.yaml").write_text(
        yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True), encoding="utf-8"
    )
    run._update(
        status="running",
        started=_now(),
        command=sys.argv,
        ewtrain=ewtrain.__version__,
        git_revision=git_revision(),
        python=platform.python_version(),
        platform=platform.platform(),
        versions=versions(),
    )
    return run


def run_status(out: Path) -> str | None:
    """Return running, finished, failed or interrupted; None where no run is."""
    try:
        record = json.loads((out / "run.json").read_text("utf-8"))
    except FileNotFoundError:
        # Killed between taking the lock and its first record: still ours.
        return "running" if (out / "run.lock").exists() else None
    except (OSError, ValueError):
        return None
    return record.get("status") if isinstance(record, dict) else None


class Run:
    """A run in progress; a context manager that records how it ended."""

    def __init__(self, out: Path, lock: IO[str]) -> None:
        self.dir = out
        self._lock = lock
        self._record: dict[str, Any] = {}
        self._start = time.monotonic()

    @property
    def unfinished(self) -> Path:
        """Return the folder for results that `finish` moves into place."""
        folder = self.dir / _UNFINISHED
        folder.mkdir(exist_ok=True)
        return folder

    def log(self, event: str, **values: Any) -> None:
        """Append one line to `metrics.jsonl`."""
        line = {"event": event, "seconds": round(time.monotonic() - self._start, 2), **values}
        with (self.dir / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def finish(self, last: str, **results: Any) -> None:
        """Move the results into the run's folder, the file named `last` after all others, and record success."""
        folder = self.unfinished
        for path in sorted(folder.iterdir(), key=lambda path: path.name == last):
            if path.is_file():
                sync(path)
            path.rename(self.dir / path.name)
        folder.rmdir()
        self._update(status="finished", ended=_now(), results=results)
        (self.dir / "run.lock").unlink(missing_ok=True)  # the status now refuses a second run

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        try:
            if self._record["status"] == "running":
                interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
                reason = str(error) if isinstance(error, EwtrainError) else repr(error)
                self._update(status="interrupted" if interrupted else "failed", ended=_now(), reason=reason)
        finally:
            self._lock.close()

    def _update(self, **values: Any) -> None:
        self._record |= values
        write_json(self.dir / "run.json", self._record)


def git_revision() -> str | None:
    """Return the commit of ewtrain's own code, `+changes` if files differ from it; None outside its repository."""
    folder = Path(ewtrain.__file__).parent

    def git(*command: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *command], capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # An installed ewtrain may lie inside some other project's repository: that one's commit says nothing.
    if git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    revision = git("rev-parse", "HEAD")
    return (
        f"{revision}+changes"
        if revision and git("status", "--porcelain", "--", ".", "../recipes")
        else revision
    )


def versions() -> dict[str, str]:
    """Return the versions of what decides a run, of those installed."""
    found: Mapping[str, str | None] = {name: _version(name) for name in _PACKAGES}
    return {name: number for name, number in found.items() if number}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _lock(out: Path) -> IO[str]:
    """Return the run's lock, held until closed or until the process ends, however it ends."""
    file = (out / "run.lock").open("w")
    try:
        import fcntl
    except ImportError:  # Windows: two runs in one folder are then the user's to avoid
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise ConfigError(f"{out}: another run is at work there. Choose another --out, or wait.") from error
    return file


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
