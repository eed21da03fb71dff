"""`ewtrain demo`: the whole path, small, on this machine; a stage whose result is there is skipped."""

from __future__ import annotations

import json
import time
from importlib import resources
from pathlib import Path

from rich.console import Console

from data_builders.build import MANIFEST, BuildSettings, build
from ewtrain.adapters import MANIFEST as ADAPTER_MANIFEST
from ewtrain.chat import ADAPTERS, Adapter
from ewtrain.configs import load_config

# Rows of every task fit in 1,400 tokens. Few steps: a falling loss within minutes on two cores, not a good model.
SETTINGS = ["max_length=1400", "max_steps=8", "max_eval_rows=2"]


def run_demo(model: str, out: Path) -> None:
    """Build the sample stories, train both adapters of a small model, and show what they say."""
    console, started = Console(highlight=False), time.monotonic()
    samples = resources.files("data_builders") / "samples"
    with resources.as_file(samples) as folder:
        _build_samples(folder, out / "data", console)
    for i, adapter in enumerate(ADAPTERS):
        console.rule(f"{i + 2} of 3: train the {adapter} of {model}", align="left")
        adapter_dir = out / model / adapter
        if (adapter_dir / ADAPTER_MANIFEST).exists():
            console.print(f"{adapter_dir}: already there, skipped", markup=False, soft_wrap=True)
            continue
        _train(model, adapter, out / "data", adapter_dir)
    console.rule("done", align="left")
    for adapter in ADAPTERS:
        losses = _losses(out / model / adapter)
        console.print(f"{adapter}: {losses}", markup=False, soft_wrap=True)
    console.print(
        f"{time.monotonic() - started:.0f} s. Adapters: {out / model}. See the rows: ewtrain show {out / 'data'} "
        "(after: source .venv/bin/activate)",
        soft_wrap=True,
    )


def _build_samples(samples: Path, out: Path, console: Console) -> None:
    from ewtrain.cli import print_build

    console.rule("1 of 3: build rows from two sample stories", align="left")
    if (out / MANIFEST).exists():
        console.print(f"{out}: already there, skipped", markup=False, soft_wrap=True)
        return
    manifest = build(
        [samples],
        out,
        BuildSettings(),
        general=str(samples / "general.jsonl"),
        splits_file=samples / "splits.json",
    )
    print_build(manifest, out)


def _train(model: str, adapter: Adapter, data: Path, out: Path) -> None:
    from ewtrain.train.sft import train_sft

    settings = SETTINGS if model == "smollm2-135m" else ["max_steps=10"]
    train_sft(load_config(model, overrides=settings, adapter=adapter), data, out)


def _losses(adapter_dir: Path) -> str:
    metrics = json.loads((adapter_dir / ADAPTER_MANIFEST).read_text(encoding="utf-8"))["metrics"]
    before, after = metrics["before"], metrics["after"]
    return ", ".join(f"{name.replace('_', ' ')} {before[name]:.3f} -> {after[name]:.3f}" for name in before)
