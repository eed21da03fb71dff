"""What an adapter was trained as: written beside its weights, read again before it is served."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from ewtrain.chat import Adapter
from ewtrain.configs import Strict
from ewtrain.errors import AdapterMismatchError, CheckFailed
from ewtrain.files import file_hash, write_json
from ewtrain.story import TaskName

MANIFEST = "ewtrain_manifest.json"
WEIGHTS = "adapter_model.safetensors"


class LoraShape(Strict):
    r: int
    lora_alpha: int
    target_modules: list[str]


class AdapterManifest(Strict):
    """Contract section 3. `tasks` names each task that had training rows, and its fingerprint then."""

    format_version: Literal[1] = 1
    adapter: Adapter
    base_model: str
    base_revision: str | None
    base_config_hash: str
    chat_template_hash: str
    end_of_turn_ids: list[int]
    max_length: int
    lora: LoraShape
    max_answer_tokens: dict[TaskName, int]
    tasks: dict[TaskName, str]
    data_manifest_hash: str | None
    git_revision: str | None
    settings: dict[str, Any]
    metrics: dict[str, Any]
    weights_hash: str


def write_manifest(folder: Path, manifest: AdapterManifest) -> None:
    """Write the manifest; the last file of an adapter, so that its presence says that all others are there."""
    write_json(folder / MANIFEST, manifest.model_dump(mode="json"))


def read_manifest(folder: Path) -> AdapterManifest:
    """Return an adapter's manifest; AdapterMismatchError where there is none, or one of another format."""
    path = folder / MANIFEST
    if not path.is_file():
        missing = "that folder does not exist" if not folder.is_dir() else f"it has no {MANIFEST}"
        raise AdapterMismatchError(
            f"{folder} is not an adapter of ewtrain: {missing}. Train one with `ewtrain sft`."
        )
    try:
        return AdapterManifest.model_validate_json(path.read_bytes(), strict=False)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise AdapterMismatchError(
            f"{path}: not a manifest that this ewtrain reads ({faults}). Use the version that wrote it, or retrain."
        ) from error


def weights_hash(folder: Path) -> str:
    """Return the SHA-256 of the weights file."""
    return file_hash(folder / WEIGHTS)


def base_config_hash(config: Mapping[str, Any]) -> str:
    """Return a hash of a base model's config.json, the same for every copy of that model."""
    own = {
        key: value for key, value in config.items() if key not in ("_name_or_path", "transformers_version")
    }
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()


def check_adapter_files(
    folder: Path, trained: Mapping[str, tuple[int, ...]], target_modules: list[str]
) -> None:
    """Raise CheckFailed unless the weights file, read anew, holds exactly the trained LoRA tensors.

    `trained`: the shape of each trained tensor, by its name in PEFT's file.
    """
    saved = safetensors_shapes(folder / WEIGHTS)
    for name in saved:
        module, _, kind = name.removesuffix(".weight").rpartition(".")
        if kind not in ("lora_A", "lora_B") or module.rpartition(".")[2] not in target_modules:
            raise CheckFailed(
                f"{folder / WEIGHTS}: {name} is not a LoRA tensor of {', '.join(target_modules)}."
            )
    if saved != dict(trained):
        wrong = sorted({*saved, *trained} - {name for name in saved if saved[name] == trained.get(name)})
        raise CheckFailed(
            f"{folder / WEIGHTS}: holds {len(saved)} tensors of {_total(saved):,} elements, trained were "
            f"{len(trained)} of {_total(trained):,}; {len(wrong)} differ, the first is {wrong[0]}."
        )


def safetensors_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return name and shape of each tensor, from the file's header alone."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
            size = path.stat().st_size - 8 - length
    except (OSError, ValueError) as error:
        raise CheckFailed(f"{path}: cannot be read as safetensors ({error}).") from error
    header.pop("__metadata__", None)
    if size != max((entry["data_offsets"][1] for entry in header.values()), default=0):
        raise CheckFailed(f"{path}: is {size} bytes of data, its header says otherwise; it was cut short.")
    return {name: tuple(entry["shape"]) for name, entry in header.items()}


def _total(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes.values())
