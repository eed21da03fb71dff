"""A run's folder: never reused by mistake, never finished-looking before it is."""

import json
from pathlib import Path

import pytest
import yaml

from ewtrain.configs import load_config
from ewtrain.errors import ConfigError, DataError
from ewtrain.runs import run_status, start_run, write_json

CONFIG = load_config("tiny", adapter="world_model")


def test_a_finished_run_has_its_results_config_and_versions(tmp_path):
    out = tmp_path / "a" / "run"
    with start_run(out, CONFIG) as run:
        (run.unfinished / "weights").write_text("w")
        (run.unfinished / "manifest").write_text("m")
        assert not (out / "weights").exists() and run_status(out) == "running"
        run.log("train", step=1, loss=0.5)
        run.finish(last="manifest", loss=0.5)
    assert run_status(out) == "finished"
    assert sorted(path.name for path in out.iterdir()) == [
        "config.yaml", "manifest", "metrics.jsonl", "run.json", "weights",
    ]  # fmt: skip
    record = json.loads((out / "run.json").read_text())
    assert record["results"] == {"loss": 0.5} and record["versions"] and "git_revision" in record
    assert yaml.safe_load((out / "config.yaml").read_text())["lora"]["r"] == 64
    assert json.loads((out / "metrics.jsonl").read_text())["loss"] == 0.5


def test_the_file_that_says_all_is_there_comes_last(tmp_path, monkeypatch):
    moved = []
    rename = Path.rename

    def watched(self, target):
        moved.append(self.name)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", watched)
    with start_run(tmp_path, CONFIG) as run:
        for name in ("a-manifest", "weights", "template"):
            (run.unfinished / name).write_text("")
        run.finish(last="a-manifest")
    assert moved[-1] == "a-manifest" and len(moved) == 3


def test_a_finished_folder_is_refused(tmp_path):
    with start_run(tmp_path / "run", CONFIG) as run:
        run.finish(last="")
    with pytest.raises(ConfigError, match="finished run"):
        start_run(tmp_path / "run", CONFIG)


def test_a_foreign_folder_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="no run of ewtrain"):
        start_run(tmp_path, CONFIG)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_is_refused(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        start_run(tmp_path / "out", CONFIG)


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), "interrupted"), (DataError("row 3 is bad"), "failed"), (ValueError(), "failed")]
)  # fmt: skip
def test_a_run_that_breaks_off_says_so_and_can_be_started_again(tmp_path, error, status):
    with pytest.raises(type(error)), start_run(tmp_path, CONFIG) as run:
        (run.unfinished / "weights").write_text("half")
        (run.dir / "prepared").mkdir()
        run.log("train", step=1)
        raise error
    assert run_status(tmp_path) == status
    assert not (tmp_path / "weights").exists()
    with start_run(tmp_path, CONFIG):
        assert (tmp_path / "prepared").is_dir(), "prepared rows are worth keeping"
        assert not (tmp_path / "metrics.jsonl").exists() and not (tmp_path / "unfinished").exists()


def test_a_second_run_at_the_same_time_is_refused(tmp_path):
    with start_run(tmp_path, CONFIG), pytest.raises(ConfigError, match="another run is at work"):
        start_run(tmp_path, CONFIG)


def test_no_environment_variable_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret_value")
    with start_run(tmp_path, CONFIG) as run:
        run.finish(last="")
    assert not any(b"hf_secret_value" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_json_file_is_old_or_new_never_a_part(tmp_path):
    write_json(tmp_path / "a.json", {"n": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"n": object()})
    assert json.loads((tmp_path / "a.json").read_text()) == {"n": 1}
