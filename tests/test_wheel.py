"""The wheel carries recipes, prompts and samples as data, and works outside the clone."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return next(out.glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_holds_every_data_file_of_the_packages(wheel: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "ewtrain", "data_builders", "recipes"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert tracked
    assert set(tracked) <= set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_wheel_in_a_fresh_environment_runs_the_demo_outside_the_clone(
    wheel: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    lock = ROOT / "requirements" / "lock.txt"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "-c", lock, f"{wheel}[train]"], check=True, cwd=tmp_path
    )
    work = tmp_path / "elsewhere"
    work.mkdir()
    done = subprocess.run(
        [tmp_path / "venv" / "bin" / "ewtrain", "demo", "--model", "tiny", "--out", "demo"],
        cwd=work,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for adapter in ("world_model", "character_agent"):
        assert (work / "demo" / "tiny" / adapter / "ewtrain_manifest.json").exists()
    assert "held out loss" in done.stdout
