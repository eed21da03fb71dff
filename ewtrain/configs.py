"""Settings: read from YAML layers and `key=value` words, checked once, then passed on as plain values.

The layers of a training run, later ones winning: `recipes/sft.yaml` (every default), then
`recipes/models/<name>.yaml`, then `--config FILE`, then `key=value`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ewtrain.chat import Adapter
from ewtrain.errors import ConfigError
from ewtrain.story import TaskName

# The largest rank that vLLM serves (its --max-lora-rank choices end here).
MAX_RANK = 512

# Keys whose value in sft.yaml is the paper's (EW Appendix B); the others are ours, where the paper is silent.
PAPER_KEYS = (
    "learning_rate",
    "num_train_epochs",
    "max_length",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "bf16",
    "gradient_checkpointing",
    "lora.r",
    "lora.lora_alpha",
    "lora.lora_dropout",
)

# What PEFT offers and a LoRA server cannot load: refused here, not discovered when serving.
_REFUSED = {
    "lora.modules_to_save": "a fully trained module is not part of a LoRA, and vLLM refuses to load it",
    "lora.use_dora": "vLLM cannot load DoRA's magnitude vectors",
    "lora.use_rslora": "it scales by alpha / sqrt(r), so the recipe's rank and alpha would mean something else",
    "lora.bias": "trained biases are not part of a LoRA, and vLLM refuses to load them",
    "lora.init_lora_weights": "other initialisations change the base weights, which the server does not have",
    "lora.layer_replication": "the server's base model has no replicated layers",
}

# Other trainers' names.
_ELSEWHERE = {
    "cutoff_len": "max_length",
    "max_seq_len": "max_length",
    "max_seq_length": "max_length",
    "lr": "learning_rate",
    "epochs": "num_train_epochs",
    "micro_batch_size": "per_device_train_batch_size",
    "batch_size": "per_device_train_batch_size",
    "grad_accum": "gradient_accumulation_steps",
    "warmup_steps": "warmup_ratio",
    "lora_rank": "lora.r",
    "lora_r": "lora.r",
    "lora_target": "lora.target_modules",
    "model_name_or_path": "base_model",
    "template": "chat_template",
    "flash_attn": "attn_implementation",
}


class Strict(BaseModel):
    """Frozen; unknown keys and values of another kind are refused, never turned into something else."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class LoraSettings(Strict):
    """PEFT's spellings."""

    r: Annotated[int, Field(ge=1)]
    lora_alpha: Annotated[int, Field(ge=1)]
    lora_dropout: Annotated[float, Field(ge=0, lt=1)]
    target_modules: Annotated[list[str], Field(min_length=1)]

    @field_validator("r")
    @classmethod
    def _servable_rank(cls, r: int) -> int:
        if r > MAX_RANK:
            raise ValueError(f"{r} is more than vLLM can serve: its largest --max-lora-rank is {MAX_RANK}")
        return r

    @field_validator("target_modules")
    @classmethod
    def _servable_modules(cls, names: list[str]) -> list[str]:
        for name in names:
            if name.rpartition(".")[2] in ("lm_head", "embed_tokens"):
                raise ValueError(
                    f"holds {name!r}: the fused loss reads the head's frozen weight, so an adapter "
                    "there gets no gradient, and vLLM serves no adapter on embeddings. Remove it"
                )
        return names


class SFTRunConfig(Strict):
    """One SFT run of one adapter, in PEFT's and TRL's spellings. Defaults and reasons: `recipes/sft.yaml`."""

    adapter: Adapter
    model: str
    base_model: str
    base_revision: str | None
    chat_template: str | None

    max_length: Annotated[int, Field(ge=16)]
    over_long: Literal["fit", "drop", "error"]
    drop_share_limit: Annotated[float, Field(ge=0, le=1)]
    max_answer_tokens: dict[TaskName, Annotated[int, Field(ge=1)]]

    lora: LoraSettings
    learning_rate: Annotated[float, Field(gt=0)]
    lr_scheduler_type: Literal["cosine", "linear", "constant", "constant_with_warmup"]
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)]
    weight_decay: Annotated[float, Field(ge=0)]
    max_grad_norm: Annotated[float, Field(gt=0)]
    optim: Literal["adamw_torch", "adamw_torch_fused", "adafactor", "sgd"]
    num_train_epochs: Annotated[float, Field(gt=0)]
    max_steps: Annotated[int, Field(ge=-1)]
    per_device_train_batch_size: Annotated[int, Field(ge=1)]
    gradient_accumulation_steps: Annotated[int, Field(ge=1)]
    per_device_eval_batch_size: Annotated[int, Field(ge=1)]
    max_eval_rows: Annotated[int, Field(ge=1)]
    max_sample_tokens: Annotated[int, Field(ge=1)]
    bf16: bool
    gradient_checkpointing: bool
    attn_implementation: Literal["auto", "flash_attention_2", "sdpa", "eager"]
    logging_steps: Annotated[int, Field(ge=1)]
    seed: Annotated[int, Field(ge=0, lt=2**32)]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_steps == 0:
            raise ValueError("max_steps is 0: set -1 for no limit, or a number of steps")
        for task, tokens in self.max_answer_tokens.items():
            if tokens >= self.max_length:
                raise ValueError(
                    f"max_answer_tokens.{task} ({tokens}) leaves no room for a prompt within max_length "
                    f"({self.max_length}). Lower the one or raise the other"
                )
        return self


def model_recipe_names() -> list[str]:
    """Return the names of `recipes/models/`."""
    folder = resources.files("recipes") / "models"
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))


def load_config(
    model: str, config_file: Path | None = None, overrides: Sequence[str] = (), *, adapter: Adapter
) -> SFTRunConfig:
    """Return the settings of a run. `model`: a recipe's name, or a Hub id or folder, for which sft.yaml holds."""
    recipes = resources.files("recipes")
    layers = [("recipes/sft.yaml", _read_yaml((recipes / "sft.yaml").read_text("utf-8"), "recipes/sft.yaml"))]
    if model in model_recipe_names():
        source = f"recipes/models/{model}.yaml"
        layers.append((source, _read_yaml((recipes / "models" / f"{model}.yaml").read_text("utf-8"), source)))
    elif "/" in model or Path(model).expanduser().is_dir():
        layers.append(("--model", {"base_model": model}))
    else:
        near = difflib.get_close_matches(model, model_recipe_names(), n=1)
        raise ConfigError(
            f"--model {model}: no such recipe{f', did you mean {near[0]}?' if near else '.'} Recipes: "
            f"{', '.join(model_recipe_names())}; a Hub id (owner/name) or a folder of a model is taken too."
        )
    if config_file is not None:
        try:
            text = config_file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--config {config_file}: cannot be read ({error}).") from error
        layers.append((str(config_file), _read_yaml(text, str(config_file))))
    for word in overrides:
        layer = _override(word)
        if own := sorted({"adapter", "model"} & set(layer)):
            raise ConfigError(f"'{word}' on the command line: {own[0]} is set by --{own[0]}.")
        layers.append((f"'{word}' on the command line", layer))
    layers.append(("--model and --adapter", {"model": model, "adapter": adapter}))
    return _build(layers)


def differences_from_paper(config: SFTRunConfig) -> list[str]:
    """Return one line for each setting whose value is not the paper's."""
    paper = _read_yaml((resources.files("recipes") / "sft.yaml").read_text("utf-8"), "recipes/sft.yaml")
    values = dict(_leaves(config.model_dump()))
    expected = dict(_leaves(paper))
    lines = [
        f"{key} {values[key]} (paper {expected[key]})" for key in PAPER_KEYS if values[key] != expected[key]
    ]
    if config.max_steps != -1:
        lines.append(f"max_steps {config.max_steps} (paper: whole epochs)")
    return lines


# -- layers


def _build(layers: Iterable[tuple[str, dict[str, Any]]]) -> SFTRunConfig:
    merged: dict[str, Any] = {}
    sources: dict[str, str] = {}
    unknown: list[str] = []
    for source, layer in layers:
        for key, value in _leaves(layer):
            if problem := _unknown_key(key):
                unknown.append(f"{source}: {problem}")
            else:
                _put(merged, key, value)
                sources[key] = source
    if unknown:
        raise ConfigError("\n".join(unknown))
    try:
        return SFTRunConfig.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(error, sources))) from error


def _explain(error: ValidationError, sources: Mapping[str, str]) -> Iterator[str]:
    for fault in error.errors():
        key = ".".join(str(part) for part in fault["loc"])
        message = str(fault["ctx"]["error"]) if fault["type"] == "value_error" else fault["msg"]
        parts = [
            key.rsplit(".", n)[0] for n in range(key.count(".") + 1)
        ]  # a list's item has its list's source
        source = next((sources[part] for part in parts if part in sources), None)
        if fault["type"] == "missing":
            message = "is not set. Name a model recipe, or set it in --config or on the command line"
        elif fault["type"] != "value_error":
            message = f"{message}, not {fault['input']!r}"
        yield f"{source + ': ' if source else ''}{key + ': ' if key else ''}{message}."


def _fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _fields(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


_KEYS = tuple(_fields(SFTRunConfig))
_OPEN = ("max_answer_tokens",)  # a table of its own: pydantic names what is wrong in it


def _unknown_key(key: str) -> str | None:
    """Return what is wrong with a dotted key, with the key that was probably meant; None if it is known."""
    if key in _KEYS or key.rpartition(".")[0] in _OPEN:
        return None
    reason = _REFUSED.get(key) or _REFUSED.get(f"lora.{key}")
    if reason:
        return f"{key} is refused: {reason}. Remove it."
    last = key.rpartition(".")[2]
    meant = _ELSEWHERE.get(last) or next((k for k in _KEYS if k.rpartition(".")[2] == last), None)
    if meant is None:
        near = difflib.get_close_matches(key, _KEYS, n=1) or difflib.get_close_matches(
            last, [k.rpartition(".")[2] for k in _KEYS], n=1
        )
        meant = next((k for k in _KEYS if near and (k == near[0] or k.rpartition(".")[2] == near[0])), None)
    if meant:
        return f"unknown setting {key!r}, did you mean {meant!r}?"
    return f"unknown setting {key!r}. Settings: {', '.join(_KEYS)}."


def _leaves(layer: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in layer.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _put(table: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        inner = table.setdefault(parent, {})
        if not isinstance(inner, dict):
            inner = table[parent] = {}
        table = inner
    table[last] = value


# -- YAML


class _Loader(yaml.SafeLoader):
    """YAML as people write numbers: PyYAML follows YAML 1.1, where 1e-3 is a text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def _read_yaml(text: str, source: str) -> dict[str, Any]:
    try:
        table = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML ({error}).") from error
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise ConfigError(f"{source}: holds a {type(table).__name__}; settings are written as 'key: value'.")
    return {str(key): value for key, value in table.items()}


def _override(word: str) -> dict[str, Any]:
    key, equals, value = word.partition("=")
    if not equals or not key.strip():
        raise ConfigError(
            f"'{word}' on the command line is not of the form key=value (lora.r=16, max_steps=10)."
        )
    try:
        return {key.strip(): yaml.load(value, Loader=_Loader)}
    except yaml.YAMLError as error:
        raise ConfigError(f"'{word}' on the command line: the value is not YAML ({error}).") from error
