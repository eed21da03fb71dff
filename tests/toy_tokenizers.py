"""Small byte-level tokenizers of the supported families: their special tokens, splitting rules and templates."""

from functools import cache
from pathlib import Path

import trl
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

TEMPLATES = Path(trl.__file__).parent / "chat_templates"

QWEN_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA_SPLIT = QWEN_SPLIT.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)

QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN_PLAIN_ADDED = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
LLAMA_SPECIAL = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
]

# SmolLM2's own template, as its GGUF and its tokenizer_config.json carry it.
SMOLLM2_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# name -> (tokenizer kind, template file of the TRL wheel or template text, chat_template setting)
FAMILIES = {
    "qwen2.5": ("qwen", "qwen2_5.jinja", None),
    "qwen3": ("qwen", "qwen3.jinja", "qwen3"),
    "qwen3-2507": ("qwen", "qwen3_instruct_2507.jinja", None),
    "llama3.1": ("llama", "llama3_1.jinja", None),
    "smollm2": ("smollm", SMOLLM2_TEMPLATE, None),
}

_TRAINING_TEXT = [
    "system\n", "user\n", "assistant\n", "\n\n", "yes", "no, yes", " hello", "the ", " world", "…", "é", '["', '"]: ',
] * 20  # fmt: skip


def toy_tokenizer(family: str, **special) -> PreTrainedTokenizerFast:
    """A fresh tokenizer of the family with its stock template; `special` overrides e.g. eos_token."""
    kind, template, _ = FAMILIES[family]
    defaults = {
        "qwen": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        "llama": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "pad_token": "<|eot_id|>"},
        "smollm": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"},
    }[kind]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_backend(kind)),
        name_or_path=f"toy-{family}",
        **(defaults | special),
    )
    tokenizer.chat_template = (TEMPLATES / template).read_text() if template.endswith(".jinja") else template
    return tokenizer


@cache
def _backend(kind: str) -> str:
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "smollm")
    if kind == "qwen":
        tokenizer.normalizer = normalizers.NFC()
        split = pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated")
    elif kind == "llama":
        split = pre_tokenizers.Split(Regex(LLAMA_SPLIT), "isolated")
    else:
        split = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    # SmolLM2 has its special tokens inside the vocabulary, at its start; the others append them.
    specials = {"qwen": QWEN_SPECIAL, "llama": LLAMA_SPECIAL, "smollm": QWEN_SPECIAL}[kind]
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=alphabet,
        special_tokens=specials if kind == "smollm" else [],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TRAINING_TEXT, trainer)
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    if kind == "qwen":
        tokenizer.add_tokens([AddedToken(s, special=False, normalized=False) for s in QWEN_PLAIN_ADDED])
    if kind == "llama":
        begin = "<|begin_of_text|>"
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=[(begin, tokenizer.token_to_id(begin))]
            ),
        ])  # fmt: skip
    return tokenizer.to_str()
