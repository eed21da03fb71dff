"""The `ewtrain` command as a user meets it: what it prints, how it ends, what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import SAMPLES

LAMP = SAMPLES / "the-lamp-at-orrin-head.timeline.json"
EWTRAIN = Path(sys.executable).parent / "ewtrain"


def ewtrain(*words: str | Path, code: int = 0) -> str:
    """Run the command; return what it printed, once it ended as it should."""
    done = subprocess.run([EWTRAIN, *words], capture_output=True, text=True, timeout=100)
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr.lstrip()


def many_books(folder: Path, count: int) -> Path:
    """A corpus large enough to be stopped in the middle."""
    folder.mkdir()
    data = json.loads(LAMP.read_text(encoding="utf-8"))
    for i in range(count):
        data["book"]["book_id"] = f"book-{i}"
        (folder / f"book-{i}.timeline.json").write_text(json.dumps(data), encoding="utf-8")
    return folder


def test_validate_says_good_and_exits_0_or_lists_every_fault_and_exits_1(tmp_path: Path) -> None:
    assert ewtrain("validate", SAMPLES).count(": good, 13 scenes") == 2
    bad = tmp_path / "bad.timeline.json"
    bad.write_text('{"book": {"book_id": "B"}}', encoding="utf-8")
    said = ewtrain("validate", SAMPLES, bad, code=1)
    assert "book.book_id: found 'B'" in said and "scenes: is missing. Add it" in said
    assert said.count("good, 13 scenes") == 2


def test_validate_counts_notices_of_every_file_and_lists_them_when_asked(tmp_path: Path) -> None:
    text = LAMP.read_text(encoding="utf-8").replace('"content": "', '"content": "[', 1)
    (tmp_path / "b.timeline.json").write_text(text, encoding="utf-8")
    assert "1 notice(s) are worth a look: pass --notices" in ewtrain("validate", tmp_path)
    assert "'[' at 0 is never closed" in ewtrain("validate", "--notices", tmp_path)


def test_export_needs_no_more_than_the_folder(tmp_path: Path) -> None:
    ewtrain("build", LAMP, "--out", tmp_path / "data")
    assert "dataset_info.json" not in ewtrain("export", tmp_path / "data")
    assert (tmp_path / "data" / "export" / "sharegpt" / "dataset_info.json").exists()


def test_build_prints_counts_and_what_one_should_know(tmp_path: Path) -> None:
    said = ewtrain("build", SAMPLES, "--out", tmp_path / "data", "--general", SAMPLES / "general.jsonl")
    assert "next_character" in said and "general" in said
    assert "Fewer than 10 books: all are train_test" in said
    assert "the general data ran out and was passed through 2 times" in said
    again = ewtrain("build", SAMPLES, "--out", tmp_path / "data", code=1)
    assert again.startswith("error: ") and "--overwrite" in again


def test_coser_files_become_rows_and_the_report_says_what_the_source_lacks(
    tmp_path: Path, trial_data: Path
) -> None:
    said = ewtrain(
        "import", "coser", trial_data / "coser" / "final_Othello.json", "--out", tmp_path / "timelines"
    )
    assert "137 interactions" in said and "the source does not provide" in said
    said = ewtrain("build", tmp_path / "timelines", "--out", tmp_path / "data")
    assert "othello does not provide scene_cast, location_scenario, world_update, character_update" in said
    assert "not_in_source" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("build", "nowhere", "--out", "x"), "no such file or folder"),
        (("build", SAMPLES, "--out", "x", "--general", "nowhere.jsonl"), "--general"),
        (("build", SAMPLES, "--out", "x", "--general", ""), "is empty"),
        (("build", SAMPLES, "--out", f"{LAMP}/x"), "is in the way"),
        (
            ("sft", "--adapter", "world_model", "--model", "qwen2.5-8b", "--data", ".", "--out", "x"),
            "did you mean",
        ),
        (("import", "coser", SAMPLES / "splits.json", "--out", "x"), "CoSER"),
    ],
)
def test_what_a_user_can_mend_ends_in_one_message_and_exit_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str | Path, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    output = ewtrain(*words, code=1)
    assert output.startswith("error: ") and said in output
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_option_exits_2_and_names_it() -> None:
    assert "--mixtures" in ewtrain("build", SAMPLES, "--out", "x", "--mixtures", "full", code=2)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_build_that_is_stopped_leaves_no_folder_that_looks_finished(
    tmp_path: Path, stop: signal.Signals
) -> None:
    corpus, out = many_books(tmp_path / "corpus", 60), tmp_path / "data"
    # A shell starts background jobs with SIGINT ignored, and the child would inherit that.
    running = subprocess.Popen(
        [EWTRAIN, "build", corpus, "--out", out],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".data.building-*/world_model")) and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(stop)
    said = running.communicate(timeout=60)[1]
    assert not out.exists()
    if stop == signal.SIGINT:
        assert running.returncode == 130 and "Stopped" in said and "Traceback" not in said
    if stop != signal.SIGKILL:
        assert [path.name for path in tmp_path.iterdir()] == ["corpus"]
    ewtrain("build", LAMP, "--out", out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "data"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("cannot mount a small tmpfs here (needs root)")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_mount_point_is_refused_before_the_work_not_after_it(small_disk: Path) -> None:
    said = ewtrain("build", LAMP, "--out", small_disk, code=1)
    assert "mount point" in said and "a folder in it" in said


def test_a_file_whose_name_is_no_text_is_built_from_and_named(tmp_path: Path) -> None:
    name = os.fsdecode(b"b\xff.timeline.json")
    (tmp_path / name).write_text(LAMP.read_text(encoding="utf-8"), encoding="utf-8")
    ewtrain("build", tmp_path, "--out", tmp_path / "data")
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["books"]["the-lamp-at-orrin-head"]["file"] == "b\\udcff.timeline.json"


def test_a_full_disk_gives_one_message_and_no_folder(small_disk: Path) -> None:
    corpus = many_books(small_disk.parent / "corpus", 4)
    said = ewtrain("build", corpus, "--out", small_disk / "data", code=1)
    assert "the disk is full" in said and said.startswith("error: ")
    assert list(small_disk.iterdir()) == []


def test_doctor_finds_what_the_tests_run_on() -> None:
    said = ewtrain("doctor")
    assert "Extra train" in said and "torch" in said and " no " not in said


def test_help_names_every_command_of_the_contract_that_is_there() -> None:
    said = ewtrain("--help")
    for command in ("demo", "doctor", "validate", "import", "build", "show", "stats", "export", "sft"):
        assert f" {command} " in said
