"""Training on the tiny model: rows prepared, a LoRA trained, an adapter saved; and what must stop it."""

import json
import multiprocessing
import time

import pytest
import torch
from toy_rows import general_row, specimen_rows, task_row, write_rows, write_toy_data
from toy_tokenizers import toy_tokenizer

from ewtrain.adapters import (
    MANIFEST,
    WEIGHTS,
    check_adapter_files,
    read_manifest,
    safetensors_shapes,
    weights_hash,
)
from ewtrain.chat import assistant, system, user
from ewtrain.configs import load_config
from ewtrain.data.tokenize import IGNORED, ChatTokenizer, load_chat_template
from ewtrain.errors import CheckFailed, ConfigError, DataError
from ewtrain.runs import run_status
from ewtrain.story import Interaction
from ewtrain.tasks import TASKS
from ewtrain.tasks.specimens import SPECIMENS
from ewtrain.train import dataset as dataset_module
from ewtrain.train import sft as sft_module
from ewtrain.train.dataset import PadCollator, prepare_rows, supervised_runs
from ewtrain.train.model import add_lora, choose_attention, load_base_model, load_tokenizer, resolve_model
from ewtrain.train.sft import Progress, generate_turn, mean_loss, train_sft

# The model is tiny and the machine is shared: a second thread costs more than it gives.
torch.set_num_threads(1)

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EWTRAIN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return write_toy_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def tiny(cache):
    return resolve_model("made:tiny")


@pytest.fixture(scope="session")
def chat(tiny):
    return load_tokenizer(tiny, None)


def config(*overrides, adapter="character_agent", model="tiny"):
    return load_config(
        model, None, ["max_steps=10", "max_eval_rows=4", "max_length=1200", *overrides], adapter=adapter
    )


def prepare(data, cache, chat, adapter="character_agent", **settings):
    settings = {
        "max_length": 2000, "over_long": "fit", "drop_share_limit": 1.0, "max_answer_tokens": {"interaction_gen": 512},
    } | settings  # fmt: skip
    return prepare_rows(data, adapter, chat, cache=cache, **settings)


def lora_model(tiny, dropout=0.0):
    base = load_base_model(tiny, dtype=torch.float32, attn_implementation="sdpa")
    return add_lora(base, r=8, lora_alpha=16, lora_dropout=dropout, target_modules=TARGETS)


# -- a whole run


@pytest.fixture(scope="session")
def run(data, tmp_path_factory):
    """A short run: its folder, its lines, and every batch that its loss saw."""
    out, said, batches = tmp_path_factory.mktemp("run") / "character_agent", [], []
    seen = sft_module.SFTTrainer.compute_loss

    def watched(self, model, inputs, *args, **kwargs):
        batches.append((inputs["input_ids"].tolist(), inputs["labels"].tolist()))
        return seen(self, model, inputs, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sft_module.SFTTrainer, "compute_loss", watched)
        train_sft(config(), data, out, say=said.append)
    return out, said, batches


def test_a_short_run_makes_both_losses_fall(run):
    metrics = read_manifest(run[0]).metrics
    assert metrics["after"]["fixed_batch_loss"] < metrics["before"]["fixed_batch_loss"] - 0.1
    assert metrics["after"]["held_out_loss"] < metrics["before"]["held_out_loss"]


def test_a_finished_run_is_an_adapter_with_its_template_and_manifest(run, tiny, chat):
    out = run[0]
    assert run_status(out) == "finished" and not (out / "unfinished").exists()
    assert {"adapter_config.json", WEIGHTS, "chat_template.jinja", MANIFEST} <= {
        path.name for path in out.iterdir()
    }
    assert not list((out / "prepared").rglob("cache-*"))
    manifest = read_manifest(out)
    assert manifest.adapter == "character_agent" and manifest.base_model == "made:tiny"
    assert manifest.base_config_hash == tiny.config_hash
    assert manifest.chat_template_hash == chat.template_hash
    assert (out / "chat_template.jinja").read_text() == chat.template
    assert manifest.end_of_turn_ids == [chat.hf.convert_tokens_to_ids("<|im_end|>")]
    assert manifest.weights_hash == weights_hash(out)
    assert manifest.tasks == {n: t.fingerprint() for n, t in TASKS.items() if t.adapter == "character_agent"}
    assert manifest.lora.r == 64 and manifest.max_answer_tokens["interaction_gen"] == 512
    assert manifest.settings["learning_rate"] == 1e-3 and manifest.data_manifest_hash
    check_adapter_files(out, safetensors_shapes(out / WEIGHTS), TARGETS)


def test_a_run_tells_what_differs_from_the_paper_its_losses_and_a_turn(run):
    text = "\n".join(run[1])
    assert "learning_rate 0.001 (paper 2e-05)" in text
    assert "held out loss: " in text and "fixed batch loss: " in text and "supervised" in text
    assert "generated:" in text and "gold:" in text
    events = [json.loads(line) for line in (run[0] / "metrics.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "train" and "loss" in event] == list(
        range(1, 11)
    )
    assert {"prepared", "before", "after", "generated"} <= {event["event"] for event in events}


def test_the_loss_sees_exactly_the_prepared_labels(run, data, chat):
    prepared = prepare(
        data, run[0].parent / "again", chat, max_length=1200, max_answer_tokens=config().max_answer_tokens
    )
    known = {
        (tuple(row["input_ids"]), tuple(row["labels"]))
        for split in ("train", "validation")
        for row in prepared.rows(split)
    }
    assert len(run[2]) >= 20
    for input_ids, labels in run[2]:
        assert len(input_ids) == 1
        assert (tuple(input_ids[0]), tuple(labels[0])) in known


def test_the_saved_adapter_loads_through_peft_and_changes_the_model(run, tiny, chat):
    from peft import PeftModel

    base = load_base_model(tiny, dtype=torch.float32, attn_implementation="sdpa")
    ids = torch.tensor([chat.encode_prompt([user("Who goes?")])])
    plain = base(ids).logits
    adapted = PeftModel.from_pretrained(base, run[0])(ids).logits
    assert not torch.allclose(plain, adapted)


def test_a_finished_folder_is_not_trained_into_again(run, data):
    with pytest.raises(ConfigError, match="finished run"):
        train_sft(config(), data, run[0], say=lambda _: None)


# -- what must stop a run


def test_ctrl_c_leaves_an_interrupted_folder_and_the_same_command_starts_again(data, tmp_path, monkeypatch):
    out, said = tmp_path / "out", []

    def interrupt(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sft_module.SFTTrainer, "train", interrupt)
        train_sft(config(), data, out, say=said.append)
    assert run_status(out) == "interrupted" and "interrupted" in said[-1]
    assert not (out / WEIGHTS).exists() and not (out / MANIFEST).exists()
    again = []
    train_sft(config("max_steps=2", "warmup_ratio=0"), data, out, say=again.append)
    assert run_status(out) == "finished"
    prepared = json.loads((out / "metrics.jsonl").read_text().partition("\n")[0])
    assert prepared["reused"] is True


def test_weights_that_never_moved_stop_the_run(data, tmp_path):
    with pytest.raises(CheckFailed, match="never updated"):
        train_sft(config("max_steps=1", "warmup_ratio=0.5"), data, tmp_path / "out", say=lambda _: None)
    assert run_status(tmp_path / "out") == "failed" and not (tmp_path / "out" / MANIFEST).exists()


def test_len_h11_a_loss_that_is_no_number_stops_the_run(data, tmp_path):
    with pytest.raises(CheckFailed, match=r"loss is (nan|inf)"):
        train_sft(config("learning_rate=1e30", "warmup_ratio=0"), data, tmp_path / "out", say=lambda _: None)


def test_len_h11_progress_refuses_nan(tmp_path):
    from types import SimpleNamespace

    progress = Progress(SimpleNamespace(log=lambda *_, **__: None), lambda _: None)
    with pytest.raises(CheckFailed, match="step 3"):
        progress.on_log(None, SimpleNamespace(global_step=3, max_steps=9), None, logs={"loss": float("nan")})


def test_several_processes_are_refused_with_a_clear_message(data, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="one process"):
        train_sft(config(), data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_trainers_loss_is_the_plain_mean_over_supervised_tokens(data, tmp_path, tiny, chat):
    prepared = prepare(data, tmp_path, chat)
    rows = prepared.rows("train").select(range(3), keep_in_memory=True)
    model = lora_model(tiny)
    trainer = sft_module.SFTTrainer(
        model=model,
        args=sft_module.trainer_arguments(config(), tmp_path, on_gpu=False),
        data_collator=PadCollator(0),
        train_dataset=rows,
        processing_class=chat.hf,
    )
    total, count = 0.0, 0
    model.eval()
    for row in rows:
        with torch.no_grad():
            logits = model(torch.tensor([row["input_ids"]])).logits[0, :-1]
        labels = torch.tensor(row["labels"][1:])
        total += float(
            torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
        )
        count += int((labels != IGNORED).sum())
    assert mean_loss(trainer, rows) == pytest.approx(total / count, rel=1e-4)


def test_tok_h09_a_model_that_learned_one_row_stops_at_the_end_of_turn(tmp_path, tiny, chat):
    """The base's own stop id is another: only what was trained, and the template's id, can end the turn."""
    specimen = SPECIMENS["interaction_gen"][-1]
    row = task_row("interaction_gen", specimen.input, specimen.target)
    prepared = prepare(write_rows(tmp_path / "d", "character_agent", [row], [row]), tmp_path, chat)
    settings = config("max_steps=40", "learning_rate=2e-2", "warmup_ratio=0", "gradient_accumulation_steps=1")
    model = lora_model(tiny)
    model.generation_config.eos_token_id = chat.hf.convert_tokens_to_ids("<|endoftext|>")
    trainer = sft_module.SFTTrainer(
        model=model,
        args=sft_module.trainer_arguments(settings, tmp_path, on_gpu=False),
        data_collator=PadCollator(0),
        train_dataset=prepared.rows("train"),
        processing_class=chat.hf,
    )
    trainer.train()
    turn = generate_turn(model, chat, prepared.rows("validation"), settings)
    assert turn == {"id": row.id, "gold": "Well?", "generated": "Well?"}


def test_the_generated_turn_starts_from_a_served_prompt_and_is_bounded(data, tmp_path, tiny, chat):
    prepared = prepare(data, tmp_path, chat)
    rows = prepared.rows("validation")
    turn = generate_turn(lora_model(tiny), chat, rows, config("max_sample_tokens=5"))
    row = next(row for row in specimen_rows("character_agent", [3]) if row.id == turn["id"])
    assert row.task == "interaction_gen"
    assert turn["gold"] == row.messages[-1]["content"]
    assert len(chat.hf.encode(turn["generated"], add_special_tokens=False)) <= 12


def test_the_fixed_batch_is_of_task_rows_and_the_same_every_time(data, tmp_path, chat):
    rows = prepare(data, tmp_path, chat).rows("train")
    assert "general" in rows["task"][:]
    chosen = [sft_module.sample(sft_module.task_rows(rows), 4, 0)["id"][:] for _ in range(2)]
    assert (
        chosen[0] == chosen[1]
        and len(chosen[0]) == 4
        and not any("general" in row_id for row_id in chosen[0])
    )
    general = prepare(write_rows(tmp_path / "g", "character_agent", chats(5), chats(5)), tmp_path, chat).rows(
        "train"
    )
    assert len(sft_module.task_rows(general)) == 1


# -- the collator


def test_tok_h07_padding_is_masked_by_length_and_a_true_end_of_turn_keeps_its_label():
    chat = ChatTokenizer(toy_tokenizer("smollm2"))
    assert chat.hf.pad_token_id == chat.end_of_turn_ids[0], "the case: pad and end of turn are one id"
    rows = [chat.encode([user("hi"), assistant(text)]) for text in ("yes", "no, yes, and more of it")]
    batch = PadCollator(chat.hf.pad_token_id)([{"input_ids": r.input_ids, "labels": r.labels} for r in rows])
    for i, row in enumerate(rows):
        n = len(row.input_ids)
        assert batch["labels"][i, :n].tolist() == row.labels
        assert batch["labels"][i].tolist().count(chat.end_of_turn_ids[0]) == 1
        assert set(batch["labels"][i, n:].tolist()) <= {IGNORED}
        assert batch["attention_mask"][i].tolist() == [1] * n + [0] * (batch["labels"].shape[1] - n)


# -- rows prepared


def chats(*lengths):
    """Return general rows of roughly so many tokens."""
    return [
        general_row("character_agent", [user(" x" * length), assistant("ok")], row_id=f"general:{i}")
        for i, length in enumerate(lengths)
    ]


def test_len_h69_over_long_rows_are_reported_and_every_policy_works(tmp_path, chat):
    data = write_rows(tmp_path / "d", "character_agent", chats(20, 80, 900), chats(20))
    lengths = [chat.count(row.messages) for row in chats(20, 80, 900)]
    limit = lengths[1] + 10
    for policy in ("fit", "drop"):
        report = prepare(data, tmp_path, chat, max_length=limit, over_long=policy).reports["train"]
        assert (report.read, report.kept, report.longest) == (3, 2, lengths[1])
        assert report.dropped["too_long"].model_dump() == {"count": 1, "examples": ["general:2"]}
        assert any("1 rows dropped: too_long (such as general:2)" in line for line in report.lines("train"))
    with pytest.raises(DataError, match=rf"general:2 has {lengths[2]} tokens, max_length is {limit}"):
        prepare(data, tmp_path, chat, max_length=limit, over_long="error")


def test_len_h69_a_drop_share_over_the_limit_is_an_error_that_names_rows(tmp_path, chat):
    data = write_rows(tmp_path / "d", "character_agent", chats(20, 900, 900), chats(20))
    with pytest.raises(DataError, match=r"2 of 3 rows would be dropped.*general:1, general:2.*max_length"):
        prepare(data, tmp_path, chat, max_length=200, drop_share_limit=0.5)


def long_scene(turns, words):
    """A dialogue of Tove's whose row is long, with a prior part."""
    specimen = SPECIMENS["interaction_gen"][0]
    others = [a for a in (m.name for m in specimen.input.cast) if a != "Tove"]

    def line(i):
        return Interaction(actors=["Tove"] if i % 2 else others[:1], content=f"Turn {i}." + " word" * words)

    inp = specimen.input.model_copy(
        update={"prior": [line(i) for i in range(6)], "live": [line(i) for i in range(6, 6 + turns)]}
    )
    return task_row("interaction_gen", inp, specimen.target, row_id="toy:long")


def test_len_h12_fitting_keeps_rules_scenario_and_the_newest_turn_and_drops_the_oldest_whole(tmp_path, chat):
    row = long_scene(turns=20, words=25)
    whole = chat.count(row.messages)
    shortest = TASKS["interaction_gen"]
    inp = shortest.Input.model_validate_json(row.input)
    limit = chat.count([*shortest._prompt(inp, 0, 18).messages, row.messages[-1]])
    assert limit < whole
    data = write_rows(tmp_path / "d", "character_agent", [row], [row])
    prepared = prepare(data, tmp_path, chat, max_length=limit)
    report = prepared.reports["train"]
    assert (report.kept, report.fitted) == (1, 1) and 0 < report.omitted <= 18 and report.moved_to_prior > 0
    text = chat.decode(prepared.rows("train")[0]["input_ids"])
    assert row.messages[0]["content"] in text and inp.scenario in text
    assert f"({report.omitted} earlier interactions omitted)" in text
    assert (
        f"Turn {report.omitted - 1}." not in text and f"Turn {report.omitted}." in text and "Turn 25." in text
    )
    assert any("1 over-long rows fitted" in line for line in report.lines("train"))


def test_len_h10_no_row_ends_inside_a_turn_whatever_the_limit(tmp_path, chat):
    rows = [long_scene(turns=8, words=10), *chats(30, 200), *specimen_rows("character_agent", [0])]
    data = write_rows(tmp_path / "d", "character_agent", rows, chats(5))
    end = chat.end_of_turn_ids[0]
    longest = max(chat.count(row.messages) for row in rows)
    for limit in range(300, longest + 100, 97):
        prepared = prepare(data, tmp_path / str(limit), chat, max_length=limit)
        report = prepared.reports["train"]
        assert report.kept + report.num_dropped == report.read == len(rows)
        for kept in prepared.rows("train"):
            assert len(kept["input_ids"]) <= limit
            assert [label for label in kept["labels"] if label != IGNORED][-1] == end
            for start, stop in supervised_runs(kept["labels"]):
                assert kept["labels"][stop - 1] == end and kept["labels"].count(end) == len(
                    supervised_runs(kept["labels"])
                )
                assert start > 0


def test_len_h11_rows_without_a_supervised_token_are_dropped_and_counted(tmp_path, chat):
    silent = general_row("character_agent", [system("s"), user("only asked")], row_id="general:silent")
    data = write_rows(tmp_path / "d", "character_agent", [silent, *chats(5)], chats(5))
    report = prepare(data, tmp_path, chat).reports["train"]
    assert report.dropped["nothing_supervised"].examples == ["general:silent"] and report.kept == 1


def test_len_h11_nothing_left_to_train_is_an_error(tmp_path, chat):
    data = write_rows(tmp_path / "d", "character_agent", chats(500), chats(5))
    with pytest.raises(DataError, match="no row is left to train on"):
        prepare(data, tmp_path, chat, max_length=100)


def test_tpl_h02_rows_with_thinking_text_are_dropped_and_counted(tmp_path, chat):
    thinking = general_row("character_agent", [user("q"), assistant("<think>p</think>a")], row_id="general:t")
    data = write_rows(tmp_path / "d", "character_agent", [thinking, *chats(5)], chats(5))
    assert prepare(data, tmp_path, chat).reports["train"].dropped["think_text"].examples == ["general:t"]


def test_prepared_rows_are_what_the_tokenizer_gives_and_train_on_is_honoured(tmp_path, chat):
    talk = [user("a"), assistant("b"), user("c"), assistant("d")]
    rows = [general_row("character_agent", talk, row_id=f"general:{t}", train_on=t) for t in ("all", "last")]
    prepared = prepare(write_rows(tmp_path / "d", "character_agent", rows, rows), tmp_path, chat)
    for row, kept in zip(rows, prepared.rows("train"), strict=True):
        encoded = chat.encode(row.messages, row.train_on)
        assert (kept["id"], kept["input_ids"], kept["labels"]) == (row.id, encoded.input_ids, encoded.labels)
    assert [len(supervised_runs(kept["labels"])) for kept in prepared.rows("train")] == [2, 1]
    assert prepared.reports["train"].supervised_tokens == sum(
        chat.encode(row.messages, row.train_on).num_supervised for row in rows
    )


def test_answers_longer_than_a_server_would_allow_are_counted(tmp_path, chat):
    rows = specimen_rows("character_agent", [0])
    data = write_rows(tmp_path / "d", "character_agent", rows, rows)
    counts = prepare(data, tmp_path, chat, max_answer_tokens={"interaction_gen": 3}).reports["train"].tasks
    turns = sum(
        m["role"] == "assistant" for row in rows if row.task == "interaction_gen" for m in row.messages
    )
    assert counts["interaction_gen"].long_answers == turns
    assert prepare(data, tmp_path, chat).reports["train"].tasks["interaction_gen"].long_answers == 0


def test_rows_that_another_version_of_a_task_wrote_are_refused(tmp_path, chat):
    row = specimen_rows("character_agent", [0])[0]
    old = row.model_copy(update={"messages": [row.messages[0], user("Old wording."), row.messages[-1]]})
    data = write_rows(tmp_path / "d", "character_agent", [old], [row])
    with pytest.raises(DataError, match=rf"{row.id}.*another version of the task"):
        prepare(data, tmp_path, chat)


@pytest.mark.parametrize(
    "spoil", [lambda p: p.unlink(), lambda p: p.write_bytes(b""), lambda p: p.write_text("<html>")]
)
def test_a_missing_or_broken_row_file_is_refused_by_name(tmp_path, chat, spoil):
    data = write_rows(tmp_path / "d", "character_agent", chats(5), chats(5))
    spoil(data / "character_agent" / "train.parquet")
    with pytest.raises(DataError, match=r"train\.parquet.*[Bb]uild"):
        prepare(data, tmp_path, chat)


def test_mix_h25_one_changed_character_of_the_template_prepares_anew(tmp_path):
    data = write_rows(tmp_path / "d", "character_agent", chats(5), chats(5))
    template = tmp_path / "t.jinja"
    folders = []
    for text in (
        load_chat_template("qwen3"),
        load_chat_template("qwen3")
        .replace("'\\n' + message.content", "':\\n' + message.content")
        .replace("assistant\\n", "assistant:\\n"),
    ):
        template.write_text(text)
        prepared = prepare(data, tmp_path / "cache", ChatTokenizer(toy_tokenizer("qwen3"), str(template)))
        folders.append((prepared.folder, prepared.rows("train")[0]["input_ids"], prepared.reused))
    assert folders[0][0] != folders[1][0] and folders[0][1] != folders[1][1] and not folders[1][2]
    assert prepare(data, tmp_path / "cache", ChatTokenizer(toy_tokenizer("qwen3"), str(template))).reused


def test_mix_h74_another_max_length_prepares_anew(tmp_path, chat):
    data = write_rows(tmp_path / "d", "character_agent", chats(20, 300), chats(5))
    short = prepare(data, tmp_path, chat, max_length=100)
    long = prepare(data, tmp_path, chat, max_length=1000)
    assert short.reports["train"].longest <= 100 < long.reports["train"].longest
    assert prepare(data, tmp_path, chat, max_length=100).reused


def test_mix_h74_changed_rows_prepare_anew(tmp_path, chat):
    prepare(write_rows(tmp_path / "d", "character_agent", chats(20), chats(5)), tmp_path, chat)
    again = prepare(write_rows(tmp_path / "d", "character_agent", chats(21), chats(5)), tmp_path, chat)
    assert not again.reused


def _prepare_slowly(data, cache, template, results):
    chat = ChatTokenizer(toy_tokenizer("qwen3"), template)
    whole = dataset_module._prepare_split

    def slow(*args):
        time.sleep(0.5)
        results.put("worked")
        return whole(*args)

    dataset_module._prepare_split = slow
    prepared = prepare(data, cache, chat)
    assert not torch.distributed.is_initialized()
    results.put(str(prepared.folder))


def test_env_h87_processes_that_want_the_same_rows_wait_without_a_process_group(tmp_path):
    data = write_rows(tmp_path / "d", "character_agent", chats(5, 6), chats(5))
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [
        context.Process(target=_prepare_slowly, args=(data, tmp_path / "cache", "qwen3", results))
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=60) for _ in range(4)]
    for worker in workers:
        worker.join(timeout=60)
        assert worker.exitcode == 0
    assert found.count("worked") == 2, "one process did both splits, the other none"
    assert len({path for path in found if path != "worked"}) == 1


# -- the base model


def test_exp_h38_an_adapter_folder_as_the_model_is_refused_with_its_base(run):
    with pytest.raises(ConfigError, match=r"is an adapter for .*tiny.*not a base model"):
        resolve_model(str(run[0]))


def test_a_folder_without_safetensors_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match="no safetensors weights"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize("name", ["nowhere", "made:huge", "./gone", "a/b/c"])
def test_a_name_that_is_no_model_is_refused(name):
    with pytest.raises(ConfigError, match="no folder here, no Hub id"):
        resolve_model(name)


def test_a_hub_model_that_cannot_be_reached_is_one_clear_error():
    with pytest.raises(ConfigError, match=r"owner/no-such-model: its config.json cannot be read"):
        resolve_model("owner/no-such-model")


def test_a_local_folder_gives_the_same_hash_as_the_model_it_copies(tiny, tmp_path):
    import shutil

    shutil.copytree(tiny.source, tmp_path / "copy")
    assert resolve_model(str(tmp_path / "copy")).config_hash == tiny.config_hash


def test_the_tiny_model_is_made_once_and_the_same_every_time(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("EWTRAIN_CACHE", str(tmp_path))
    again = resolve_model("made:tiny")
    assert again.source != tiny.source
    files = [__import__("pathlib").Path(m.source) / "model.safetensors" for m in (tiny, again)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert not list(tmp_path.glob("*.partial"))


def test_only_lora_weights_are_trainable(tiny):
    assert all(".lora_" in name for name in sft_module.lora_parameters(lora_model(tiny)))
    model = lora_model(tiny)
    next(model.parameters()).requires_grad = True
    with pytest.raises(CheckFailed, match="1 of them not LoRA"):
        sft_module.lora_parameters(model)


def test_target_modules_that_the_model_lacks_are_refused(tiny):
    base = load_base_model(tiny, dtype=torch.float32, attn_implementation="sdpa")
    with pytest.raises(ConfigError, match=r"query_key_value not found among .* Qwen2.*q_proj"):
        add_lora(base, r=8, lora_alpha=16, lora_dropout=0.0, target_modules=["query_key_value"])


def test_env_h66_without_flash_attention_sdpa_is_used_with_one_message():
    implementation, message = choose_attention("auto", on_gpu=False, bf16=True)
    assert implementation == "sdpa" and "FlashAttention" in message and "no GPU" in message
    assert choose_attention("eager", on_gpu=False, bf16=False) == ("eager", None)


def test_env_h66_the_message_is_said_once(run):
    assert sum("FlashAttention" in line for line in run[1]) == 1


def test_env_h66_flash_attention_is_taken_where_it_is(monkeypatch):
    monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: True)
    assert choose_attention("auto", on_gpu=True, bf16=True) == ("flash_attention_2", None)
    assert choose_attention("auto", on_gpu=True, bf16=False)[0] == "sdpa"


def test_env_h66_flash_attention_asked_for_by_name_is_refused_where_it_cannot_run():
    with pytest.raises(ConfigError, match=r"no GPU.*auto or sdpa"):
        choose_attention("flash_attention_2", on_gpu=False, bf16=True)


def test_tpl_h01_stock_qwen3_as_a_base_is_refused_before_any_training(data, tmp_path, tiny):
    import shutil

    from toy_tokenizers import TEMPLATES

    model = tmp_path / "qwen3"
    shutil.copytree(tiny.source, model)
    (model / "chat_template.jinja").write_text((TEMPLATES / "qwen3.jinja").read_text())
    with pytest.raises(ConfigError, match="chat_template=qwen3"):
        train_sft(config(f"base_model={model}"), data, tmp_path / "out", say=lambda _: None)
    assert run_status(tmp_path / "out") == "failed"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda row: row | {"adapter": "world_model"}, "is of the world_model"),
        (lambda row: row | {"wording": 99}, "unknown wording 99"),
        (
            lambda row: (
                row | {"messages": [*row["messages"][:-1], {"role": "assistant", "content": "TAMPERED"}]}
            ),
            "its answer is none of motivation_update",
        ),
        (lambda row: row | {"messages": row["messages"][:-1]}, "does not end with an answer"),
    ],
)
def test_rows_that_were_tampered_with_are_refused_by_name(data, tmp_path, tiny, change, said):
    import shutil

    import pyarrow as pa
    import pyarrow.parquet as pq

    copy = shutil.copytree(data, tmp_path / "data")
    path = copy / "character_agent" / "train.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    at = next(i for i, row in enumerate(rows) if row["task"] == "motivation_update")
    rows[at] = change(rows[at])
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)
    with pytest.raises(DataError, match=said):
        train_sft(config(f"base_model={tiny.source}"), copy, tmp_path / "out", say=lambda _: None)


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (None, "no finished build"),
        ({"format_version": 99}, "format_version is 99"),
        ({"format_version": 1}, "counts 0"),
    ],
)
def test_a_folder_whose_manifest_does_not_fit_its_rows_is_refused(data, tmp_path, tiny, manifest, said):
    import json
    import shutil

    copy = shutil.copytree(data, tmp_path / "data")
    (copy / "manifest.json").unlink()
    if manifest is not None:
        (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=said):
        train_sft(config(f"base_model={tiny.source}"), copy, tmp_path / "out", say=lambda _: None)


def test_a_run_leaves_no_path_of_the_models_cache_in_the_adapter(run):
    import json

    saved = json.loads((run[0] / "adapter_config.json").read_text())
    assert (
        saved["base_model_name_or_path"]
        == json.loads((run[0] / "ewtrain_manifest.json").read_text())["base_model"]
    )
