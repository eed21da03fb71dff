"""What the documents show works, and nothing in them is left to fill in."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from conftest import ROOT

from ewtrain.story import Timeline
from ewtrain.timeline_file import check_timeline

DOCS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "recipes").rglob("*.md")])


def test_the_contracts_example_is_a_timeline_without_fault() -> None:
    text = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
    example = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert example is not None
    assert check_timeline(Timeline.model_validate(json.loads(example.group(1)))).faults == []


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_no_document_has_a_gap_or_a_dead_link(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "@@" not in text and "TODO" not in text
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (path.parent / target).exists(), target
