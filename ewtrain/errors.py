"""The errors a user can mend. Our own bugs keep their traceback."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class EwtrainError(Exception):
    """Something the user can mend: the message says what, where, and the way out."""


class ConfigError(EwtrainError):
    """A setting is unknown, of the wrong kind, or does not fit the others."""


class AdapterMismatchError(EwtrainError):
    """An adapter does not fit the base model, the task definitions or the server asked for."""


class CheckFailed(EwtrainError):
    """A run broke an invariant; it stops rather than end green and wrong."""


@dataclass(frozen=True)
class Fault:
    """One place where a file breaks the contract."""

    file: str
    path: str
    wrong: str
    right: str

    def __str__(self) -> str:
        where = f"{self.file}: {self.path}" if self.path else self.file
        return f"{where}: {self.wrong}. {self.right}{'' if self.right.endswith(('.', '?')) else '.'}"


class DataError(EwtrainError):
    """A file or row breaks the data contract. `faults` holds every place."""

    def __init__(self, message: str, faults: Iterable[Fault] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)

    @classmethod
    def of(cls, faults: Iterable[Fault], summary: str = "") -> DataError:
        """Return one error whose message lists every fault, one a line."""
        faults = tuple(faults)
        lines = [summary or f"{len(faults)} fault{'s' if len(faults) != 1 else ''} found:"]
        return cls("\n".join([*lines, *(f"  {fault}" for fault in faults)]), faults)
