"""Settings: layers, their sources, and what is refused at the door."""

import re
import subprocess
import sys
from importlib import resources

import pytest

from ewtrain.configs import (
    PAPER_KEYS,
    _leaves,
    _read_yaml,
    differences_from_paper,
    load_config,
    model_recipe_names,
)
from ewtrain.errors import ConfigError

SFT = (resources.files("recipes") / "sft.yaml").read_text("utf-8")


def load(*overrides, model="tiny", config_file=None):
    return load_config(model, config_file, overrides, adapter="world_model")


@pytest.mark.parametrize("name", model_recipe_names())
def test_every_model_recipe_gives_a_whole_config(name):
    config = load(model=name)
    assert config.model == name and config.base_model and config.adapter == "world_model"


def test_the_recipes_are_the_issues():
    assert {
        "qwen2.5-7b",
        "qwen2.5-14b",
        "qwen2.5-32b",
        "llama3.1-8b",
        "qwen3-4b",
        "tiny",
        "smollm2-135m",
    } <= set(model_recipe_names())


def test_the_papers_models_differ_from_the_paper_in_nothing():
    for name in ("qwen2.5-7b", "qwen2.5-14b", "qwen2.5-32b", "llama3.1-8b", "qwen3-4b"):
        assert differences_from_paper(load(model=name)) == []


def test_a_cpu_recipe_says_what_differs_from_the_paper():
    lines = differences_from_paper(load(model="smollm2-135m"))
    assert "max_length 1024 (paper 32768)" in lines
    assert "bf16 False (paper True)" in lines
    assert any(line.startswith("max_steps 30") for line in lines)


def test_every_default_is_marked_paper_or_ours_and_the_marks_are_true():
    marked = {}
    parents = []
    for line in SFT.splitlines():
        if match := re.match(r"( *)([a-z_0-9]+):(.*)$", line):
            depth = len(match[1]) // 2
            parents = [*parents[:depth], match[2]]
            marked[".".join(parents)] = (re.search(r"# (paper|ours)\b", line) or ["", None])[1]
    for key, _ in _leaves(_read_yaml(SFT, "sft.yaml")):
        mark = marked[key] or marked[key.rpartition(".")[0]]
        assert mark, f"{key} has no mark"
        assert (mark == "paper") == (key in PAPER_KEYS or key == "attn_implementation"), key


def test_paper_values_are_those_of_appendix_b():
    values = dict(_leaves(_read_yaml(SFT, "sft.yaml")))
    assert {key: values[key] for key in PAPER_KEYS} == {
        "learning_rate": 2e-5,
        "num_train_epochs": 2.0,
        "max_length": 32768,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 64,
        "bf16": True,
        "gradient_checkpointing": True,
        "lora.r": 64,
        "lora.lora_alpha": 128,
        "lora.lora_dropout": 0.05,
    }


def test_answer_limits_are_the_contracts():
    assert load(model="qwen2.5-7b").max_answer_tokens == {
        "next_character": 64, "scene_cast": 256, "motivation_update": 256, "location_scenario": 512,
        "interaction_gen": 512, "world_update": 4096, "character_update": 4096,
    }  # fmt: skip


def test_later_layers_win_and_the_others_stay(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("learning_rate: 3e-4\nlora: {r: 8}\nseed: 5\n")
    config = load("seed=6", "lora.lora_alpha=16", config_file=file)
    assert (config.learning_rate, config.lora.r, config.lora.lora_alpha, config.seed) == (3e-4, 8, 16, 6)
    assert config.lora.lora_dropout == 0.05, "from sft.yaml"
    assert config.max_steps == 30, "from the model file"


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "1.0e-3", "0.001", "+1e-3", "1e-03"])
def test_numbers_are_read_as_people_write_them(text):
    assert load(f"learning_rate={text}").learning_rate == 1e-3


def test_a_hub_id_or_a_folder_is_a_model_too(tmp_path):
    assert load(model="owner/name").base_model == "owner/name"
    assert load(model=str(tmp_path)).base_model == str(tmp_path)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("lerning_rate=1e-3", "'learning_rate'"),
        ("lora.rank=8", "'lora.r'"),
        ("lora_r=8", "'lora.r'"),
        ("lora_dropout=0", "'lora.lora_dropout'"),
        ("lora.dropout=0", "'lora.lora_dropout'"),
        ("cutoff_len=8", "'max_length'"),
        ("max_step=8", "'max_steps'"),
        ("max_answer_token.scene_cast=8", "'max_answer_tokens'"),
    ],
)
def test_an_unknown_key_is_refused_with_its_source_and_the_nearest_right_one(word, meant):
    with pytest.raises(ConfigError) as caught:
        load(word)
    assert f"'{word}' on the command line" in str(caught.value)
    assert f"did you mean {meant}" in str(caught.value)


def test_all_unknown_keys_are_named_at_once_each_with_its_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("sed: 1\n")
    with pytest.raises(ConfigError) as caught:
        load("lerning_rate=1", config_file=file)
    assert f"{file}: unknown setting 'sed', did you mean 'seed'?" in str(caught.value)
    assert "'lerning_rate'" in str(caught.value)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("learning_rate=fast", "learning_rate: .*number, not 'fast'"),
        ("learning_rate=0", "learning_rate"),
        ("bf16=1", "bf16: .*boolean, not 1"),
        ("max_steps=0", "max_steps is 0"),
        ("max_steps=2.5", "max_steps"),
        ("lora.lora_dropout=1.0", "lora.lora_dropout"),
        ("lora.target_modules=[]", "lora.target_modules"),
        ("over_long=cut", "over_long: .*'fit', 'drop' or 'error'"),
        ("max_answer_tokens.dialogue=4", "max_answer_tokens"),
        ("max_length=100", "leaves no room for a prompt"),
        ("seed", "not of the form key=value"),
        ("lora.r=[", "not YAML"),
    ],
)
def test_a_wrong_value_is_refused_with_the_reason(word, says):
    with pytest.raises(ConfigError, match=says):
        load(word)


def test_mem_h18_an_adapter_on_the_head_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match=r"target_modules=\[q_proj, lm_head\].*'lm_head'.*no gradient"):
        load("lora.target_modules=[q_proj, lm_head]")


@pytest.mark.parametrize(
    "word", ["lora.modules_to_save=[embed_tokens, lm_head]", "lora.target_modules=[embed_tokens]"]
)
def test_exp_h34_trained_embeddings_are_refused_since_the_server_cannot_load_them(word):
    with pytest.raises(ConfigError, match="vLLM"):
        load(word)


@pytest.mark.parametrize("word", ["lora.use_dora=true", "lora.bias=all", "lora.init_lora_weights=pissa", "lora.use_rslora=true", "use_dora=true"])  # fmt: skip
def test_exp_h36_what_a_lora_server_cannot_load_is_refused_with_the_reason(word):
    with pytest.raises(ConfigError, match="is refused: "):
        load(word)


@pytest.mark.parametrize("r", [0, -8, 513])
def test_exp_h36_a_rank_that_cannot_be_served_is_refused(r):
    with pytest.raises(ConfigError, match=r"lora\.r"):
        load(f"lora.r={r}")


def test_a_wrong_model_name_lists_the_recipes():
    with pytest.raises(ConfigError, match=r"did you mean qwen2\.5-7b.*Recipes: .*tiny"):
        load(model="qwen2.5-7")


@pytest.mark.parametrize("text", ["- a\n", "a: [\n", "just words\n"])
def test_a_config_file_that_is_no_table_is_refused_by_name(tmp_path, text):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(str(file))):
        load(config_file=file)


def test_a_missing_config_file_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read"):
        load(config_file=tmp_path / "none.yaml")


def test_reading_settings_loads_no_heavy_library():
    code = "import sys, ewtrain.configs, ewtrain.runs, ewtrain.adapters; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("optim=nope", "optim"),
        ("learning_rate=.inf", "learning_rate"),
        ("num_train_epochs=.inf", "num_train_epochs"),
        ("adapter=world_model", "--adapter"),
        ("model=x", "--model"),
    ],
)
def test_settings_that_would_crash_or_mislead_later_are_refused_at_the_door(word, said):
    with pytest.raises(ConfigError, match=said):
        load_config("tiny", overrides=[word], adapter="character_agent")
