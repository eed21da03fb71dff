"""Imports go one way, and the light core stays light (`ewtrain --help` answers at once)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

LAYERS = [
    {
        "story",
        "content",
        "replay",
        "chat",
        "errors",
        "configs",
        "files",
        "timeline_check",
        "timeline_file",
    },
    {"tasks", "judges"},
    {"adapters", "runs", "client", "data"},
    {"rewards", "simulation", "evaluation"},
    {"train"},
    {"cli", "demo", "doctor"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
HEAVY = ["torch", "transformers", "vllm", "trl", "peft", "datasets", "pyarrow", "numpy", "matplotlib"]
FILES = sorted(path for folder in ("ewtrain", "data_builders") for path in (ROOT / folder).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: a relative import"
            if node.module in ("ewtrain", "data_builders"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_each_file_imports_only_what_lies_before_it(path: Path) -> None:
    package, *rest = path.relative_to(ROOT).with_suffix("").parts
    for name in imported(path):
        first, *inner = name.split(".")
        if package == "data_builders":
            assert first != "serving" and name.split(".")[:2] != ["ewtrain", "cli"], name
        elif rest != ["__init__"]:
            level = LEVEL[rest[0]]
            if level < LEVEL["cli"]:
                assert first not in ("data_builders", "serving"), name
            if first == "ewtrain" and inner:
                assert LEVEL[inner[0]] <= level, name


def loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module", ["ewtrain", "ewtrain.tasks", "ewtrain.timeline_file", "ewtrain.replay", "ewtrain.cli"]
)
def test_the_light_core_needs_no_heavy_library(module: str) -> None:
    assert not loaded_after(f"import {module}") & set(HEAVY)


def test_help_loads_no_task_and_no_builder() -> None:
    code = "import sys, ewtrain.cli\nsys.argv = ['ewtrain', '--help']\ntry: ewtrain.cli.main()\nexcept SystemExit: pass"
    script = f"{code}\nassert not any(n.startswith(('ewtrain.tasks', 'data_builders')) for n in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, capture_output=True)
