"""Rows to Parquet with flat memory, and a folder that appears only once it is whole."""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from ewtrain.chat import Example
from ewtrain.errors import DataError

_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])
ROW_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("task", pa.string()),
        ("adapter", pa.string()),
        ("source", pa.string()),
        ("book_id", pa.string()),
        ("scene", pa.int32()),
        ("segment", pa.int32()),
        ("actors", pa.list_(pa.string())),
        ("wording", pa.int32()),
        ("messages", pa.list_(_MESSAGE)),
        ("train_on", pa.string()),
        ("input", pa.string()),
    ]
)
_FEW_VALUES = ["task", "adapter", "source", "book_id", "train_on", "messages.list.element.role"]
_GROUP_BYTES = 24 * 2**20


class RowWriter:
    """Writes Examples to one Parquet file; compression runs on a second thread."""

    def __init__(self, path: Path) -> None:
        self._writer = pq.ParquetWriter(
            path,
            ROW_SCHEMA,
            compression="zstd",
            compression_level=1,
            use_dictionary=_FEW_VALUES,
            write_statistics=False,
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="parquet")
        self._pending: Future[None] | None = None
        self._rows: list[Example] = []
        self._bytes = 0

    def add(self, row: Example) -> None:
        self._rows.append(row)
        self._bytes += len(row.input or "") + sum(len(message["content"]) for message in row.messages)
        if self._bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            batch = _batch(self._rows)
            self._rows, self._bytes = [], 0
            self._wait()
            self._pending = self._thread.submit(self._writer.write_batch, batch)

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def close(self) -> None:
        """Write what is left; an error of the disk rises here at the latest."""
        try:
            self._flush()
            self._wait()
        finally:
            self._thread.shutdown(wait=True)
            self._writer.close()


def _batch(rows: list[Example]) -> pa.RecordBatch:
    offsets, roles, contents = [0], [], []
    for row in rows:
        for message in row.messages:
            roles.append(message["role"])
            contents.append(message["content"])
        offsets.append(len(roles))
    structs = pa.StructArray.from_arrays(
        [pa.array(roles, pa.string()), pa.array(contents, pa.string())], fields=list(_MESSAGE)
    )
    messages = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs)
    columns = [
        messages
        if field.name == "messages"
        else pa.array([getattr(row, field.name) for row in rows], field.type)
        for field in ROW_SCHEMA
    ]
    return pa.record_batch(columns, schema=ROW_SCHEMA)


def read_rows(path: Path, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield a Parquet file's rows as dicts, one row group in memory at a time."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=256, columns=columns):
            yield from batch.to_pylist()


@contextmanager
def whole_folder(out: Path, *, marker: str, overwrite: bool = False) -> Iterator[Path]:
    """Yield a folder beside `out` that takes its name when the block ends well, and vanishes otherwise.

    `marker` is the file by which a finished folder of ours is known: with `overwrite` such a folder is
    replaced; any other that is not empty is refused, and so is one that another process is writing.
    """
    out = Path(os.path.abspath(out))
    out.parent.mkdir(parents=True, exist_ok=True)
    _clear_left_behind(out)
    if out.exists() and not out.is_dir():
        raise DataError(f"{out}: is a file. Give --out a folder.")
    if os.path.ismount(out):
        raise DataError(
            f"{out}: is a mount point, which cannot be put in place whole. Give --out a folder in it."
        )
    if out.is_dir() and any(out.iterdir()):
        if not (out / marker).exists():
            raise DataError(f"{out}: holds files that are not ours (no {marker}). Give --out a new folder.")
        if not overwrite:
            raise DataError(f"{out}: holds a finished result. Give --out a new folder, or pass --overwrite.")
    aside = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}.building-"))
    aside.chmod(0o777 & ~_umask())
    lock = _locked(aside)
    try:
        yield aside
        (aside / _LOCK).unlink()
        old = aside.with_name(aside.name.replace(".building-", ".old-"))
        if out.exists():
            out.rename(old)
        aside.rename(out)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if lock is not None:
            lock.close()


_LOCK = ".lock"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _locked(folder: Path) -> IO[bytes] | None:
    """Return the open lock of a folder under work; None where another process holds it."""
    file = (folder / _LOCK).open("wb")
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # Windows has none: nothing is cleared up or refused there
        pass
    except OSError:
        file.close()
        return None
    return file


def _clear_left_behind(out: Path) -> None:
    """Clear up after builds that were killed: an unfinished folder goes, a replaced one comes back."""
    for left in out.parent.glob(f".{glob.escape(out.name)}.building-*"):
        try:
            lock = _locked(left)
        except FileNotFoundError:  # finished or cleared at this very moment
            continue
        if lock is None:
            raise DataError(f"{out}: another process is writing it. Wait for it, or give another --out.")
        shutil.rmtree(left, ignore_errors=True)
        lock.close()
    for left in out.parent.glob(f".{glob.escape(out.name)}.old-*"):
        if out.exists():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.rename(out)
