"""The adapter manifest, and the check of the saved weights."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from ewtrain.adapters import (
    MANIFEST,
    WEIGHTS,
    AdapterManifest,
    LoraShape,
    base_config_hash,
    check_adapter_files,
    read_manifest,
    safetensors_shapes,
    weights_hash,
    write_manifest,
)
from ewtrain.errors import AdapterMismatchError, CheckFailed

# Contract section 3.
FIELDS = [
    "format_version", "adapter", "base_model", "base_revision", "base_config_hash", "chat_template_hash",
    "end_of_turn_ids", "max_length", "lora", "max_answer_tokens", "tasks", "data_manifest_hash", "git_revision",
    "settings", "metrics", "weights_hash",
]  # fmt: skip

SHAPES = {
    "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (4, 8),
    "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": (8, 4),
}


def manifest(**changes):
    return AdapterManifest(
        **{
            "adapter": "world_model", "base_model": "owner/name", "base_revision": None, "base_config_hash": "c",
            "chat_template_hash": "t", "end_of_turn_ids": [2], "max_length": 1024,
            "lora": LoraShape(r=4, lora_alpha=8, target_modules=["q_proj"]), "max_answer_tokens": {"scene_cast": 256},
            "tasks": {"scene_cast": "f"}, "data_manifest_hash": None, "git_revision": None,
            "settings": {"seed": 0}, "metrics": {"loss": 1.5}, "weights_hash": "w",
        } | changes
    )  # fmt: skip


def save(folder, shapes):
    save_file({name: np.ones(shape, np.float32) for name, shape in shapes.items()}, folder / WEIGHTS)


def test_a_manifest_comes_back_as_it_was_written(tmp_path):
    write_manifest(tmp_path, manifest())
    assert read_manifest(tmp_path) == manifest()
    assert list(json.loads((tmp_path / MANIFEST).read_text())) == FIELDS


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: path.unlink(), "has no ewtrain_manifest.json"),
        (lambda path: path.write_text("{"), "not a manifest"),
        (lambda path: path.write_text("{}"), "adapter: Field required"),
        (lambda path: path.write_text(path.read_text().replace('"format_version": 1', '"format_version": 2')), "format_version"),
        (lambda path: path.write_text(path.read_text().replace('"max_length"', '"max_len"')), "max_len"),
    ],
)  # fmt: skip
def test_a_folder_without_a_readable_manifest_is_refused_by_name(tmp_path, spoil, says):
    write_manifest(tmp_path, manifest())
    spoil(tmp_path / MANIFEST)
    with pytest.raises(AdapterMismatchError, match=says) as caught:
        read_manifest(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(AdapterMismatchError, match="does not exist"):
        read_manifest(tmp_path / "none")


def test_saved_weights_that_are_the_trained_ones_pass(tmp_path):
    save(tmp_path, SHAPES)
    check_adapter_files(tmp_path, SHAPES, ["q_proj"])


@pytest.mark.parametrize(
    ("saved", "says"),
    [
        (dict(list(SHAPES.items())[:1]), "holds 1 tensors of 32 elements, trained were 2 of 64"),
        (SHAPES | {"base_model.model.lm_head.weight": (2, 2)}, "lm_head.weight is not a LoRA tensor"),
        (SHAPES | {"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight": (4, 8)}, "is not a LoRA tensor of q_proj"),
        (SHAPES | {next(iter(SHAPES)): (2, 8)}, "1 differ"),
    ],
)  # fmt: skip
def test_saved_weights_that_differ_from_the_trained_ones_fail(tmp_path, saved, says):
    save(tmp_path, saved)
    with pytest.raises(CheckFailed, match=says):
        check_adapter_files(tmp_path, SHAPES, ["q_proj"])


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_weights_file_that_was_cut_short_fails(tmp_path, keep):
    save(tmp_path, SHAPES)
    whole = (tmp_path / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).write_bytes(whole[:keep])
    with pytest.raises(CheckFailed):
        safetensors_shapes(tmp_path / WEIGHTS)


def test_the_weights_hash_sees_every_byte(tmp_path):
    save(tmp_path, SHAPES)
    before = weights_hash(tmp_path)
    data = bytearray((tmp_path / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (tmp_path / WEIGHTS).write_bytes(data)
    assert weights_hash(tmp_path) != before


def test_a_base_models_hash_ignores_where_and_with_what_it_was_saved():
    config = {"hidden_size": 8, "_name_or_path": "/a", "transformers_version": "5.19.0"}
    assert base_config_hash(config) == base_config_hash({"hidden_size": 8, "_name_or_path": "/b"})
    assert base_config_hash(config) != base_config_hash(config | {"hidden_size": 16})
