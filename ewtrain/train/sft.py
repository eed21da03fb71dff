"""LoRA SFT of one adapter, from rows to a folder that can be served."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from peft import PeftModel
from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from trl import SFTConfig, SFTTrainer

from ewtrain.adapters import (
    MANIFEST,
    WEIGHTS,
    AdapterManifest,
    LoraShape,
    check_adapter_files,
    weights_hash,
    write_manifest,
)
from ewtrain.chat import GENERAL
from ewtrain.configs import SFTRunConfig, differences_from_paper
from ewtrain.data.tokenize import IGNORED, ChatTokenizer
from ewtrain.errors import CheckFailed
from ewtrain.runs import Run, git_revision, start_run
from ewtrain.tasks import TASKS
from ewtrain.train.dataset import (
    PadCollator,
    Prepared,
    prepare_rows,
    refuse_several_processes,
    supervised_runs,
)
from ewtrain.train.model import add_lora, choose_attention, load_base_model, load_tokenizer, resolve_model

if TYPE_CHECKING:
    from datasets import Dataset

_FIXED_BATCH = 4  # rows


def train_sft(
    config: SFTRunConfig, data: Path, out: Path, *, say: Callable[[str], None] = print
) -> AdapterManifest:
    """Train `config.adapter` on `<data>/<adapter>` and return its manifest; `out` becomes the adapter's folder.

    `say` is told, line by line, what a user wants to know. Ctrl-C leaves `out` marked as interrupted.
    """
    refuse_several_processes()
    with start_run(out, config) as run:
        try:
            return _train(config, data, run, say)
        except KeyboardInterrupt:
            say(
                f"interrupted: {run.dir} holds no adapter. The same command starts again, with its prepared rows."
            )
            raise


def _train(config: SFTRunConfig, data: Path, run: Run, say: Callable[[str], None]) -> AdapterManifest:
    quiet_libraries()
    on_gpu = torch.cuda.is_available()
    say(f"{config.adapter}: LoRA r={config.lora.r} on {config.base_model}")
    if differences := differences_from_paper(config):
        say("\n  ".join(["not as in the paper:", *differences]))
    attention, message = choose_attention(config.attn_implementation, on_gpu=on_gpu, bf16=config.bf16)
    if message:
        say(message)

    base = resolve_model(config.base_model, config.base_revision, say=say)
    chat = load_tokenizer(base, config.chat_template)

    prepared = prepare_rows(
        data,
        config.adapter,
        chat,
        max_length=config.max_length,
        over_long=config.over_long,
        drop_share_limit=config.drop_share_limit,
        max_answer_tokens=config.max_answer_tokens,
        cache=run.dir / "prepared",
    )
    for split, report in prepared.reports.items():
        for line in report.lines(split):
            say(line)
        run.log("prepared", split=split, reused=prepared.reused, **report.model_dump())

    torch.manual_seed(config.seed)
    model = add_lora(
        load_base_model(
            base, dtype=torch.bfloat16 if config.bf16 else torch.float32, attn_implementation=attention
        ),
        r=config.lora.r,
        lora_alpha=config.lora.lora_alpha,
        lora_dropout=config.lora.lora_dropout,
        target_modules=config.lora.target_modules,
    )
    trained = lora_parameters(model)
    say(f"{sum(p.numel() for p in trained.values()):,} trainable parameters of {model.num_parameters():,}")

    rows = prepared.rows("train")
    held_out = sample(task_rows(prepared.rows("validation")), config.max_eval_rows, config.seed)
    fixed_batch = sample(task_rows(rows), _FIXED_BATCH, config.seed)
    trainer = SFTTrainer(
        model=model,
        args=trainer_arguments(config, run.dir, on_gpu=on_gpu),
        data_collator=PadCollator(pad_id(chat)),
        train_dataset=rows.select_columns(["input_ids", "labels"]),
        processing_class=chat.hf,
        callbacks=[Progress(run, say)],
    )
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)

    before = losses(trainer, fixed_batch, held_out)
    run.log("before", **before)
    started = time.monotonic()
    trainer.train()
    train_seconds = time.monotonic() - started
    after = losses(trainer, fixed_batch, held_out)
    run.log("after", **after)
    for name in before:
        say(f"{name.replace('_', ' ')}: {before[name]:.4f} before, {after[name]:.4f} after")
    check_trained(trained, after)

    turn = generate_turn(model, chat, prepared.rows("validation"), config)
    if turn:
        run.log("generated", **turn)
        say(f"one turn of {turn['id']}\n  gold:      {turn['gold']}\n  generated: {turn['generated']}")

    save_adapter(model, chat, run.unfinished, config, base.name)
    metrics = {
        "steps": trainer.state.global_step,
        "train_seconds": round(train_seconds, 1),
        "before": before,
        "after": after,
        "rows": prepared.reports["train"].kept,
        "tokens": prepared.reports["train"].tokens,
        "supervised_tokens": prepared.reports["train"].supervised_tokens,
    }
    manifest = AdapterManifest(
        adapter=config.adapter,
        base_model=base.name,
        base_revision=base.revision,
        base_config_hash=base.config_hash,
        chat_template_hash=chat.template_hash,
        end_of_turn_ids=chat.end_of_turn_ids,
        max_length=config.max_length,
        lora=LoraShape(
            r=config.lora.r, lora_alpha=config.lora.lora_alpha, target_modules=config.lora.target_modules
        ),
        max_answer_tokens=config.max_answer_tokens,
        tasks=task_fingerprints(prepared),
        data_manifest_hash=prepared.data_manifest_hash,
        git_revision=git_revision(),
        settings=config.model_dump(mode="json"),
        metrics=metrics,
        weights_hash=weights_hash(run.unfinished),
    )
    write_manifest(run.unfinished, manifest)
    run.finish(last=MANIFEST, **metrics)
    say(f"{run.dir}: adapter saved ({train_seconds:.0f} s of training)")
    return manifest


def trainer_arguments(config: SFTRunConfig, out: Path, *, on_gpu: bool) -> SFTConfig:
    return SFTConfig(
        output_dir=str(out),
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.lr_scheduler_type,
        warmup_steps=config.warmup_ratio,  # below 1 it is a share of the steps
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        optim=config.optim,
        num_train_epochs=config.num_train_epochs,
        max_steps=config.max_steps,
        per_device_train_batch_size=config.per_device_train_batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        per_device_eval_batch_size=config.per_device_eval_batch_size,
        bf16=config.bf16,
        gradient_checkpointing=config.gradient_checkpointing,
        seed=config.seed,
        logging_steps=config.logging_steps,
        logging_nan_inf_filter=False,  # it would show a NaN loss as 0
        save_strategy="no",
        report_to="none",
        use_cpu=not on_gpu,
        dataloader_pin_memory=on_gpu,
        remove_unused_columns=False,
        # The rows are tokens and labels already, no longer than they may be.
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
    )


class Progress(TrainerCallback):
    """A progress bar (where no one watches, some ten lines), the run's log, and a stop at a loss that is no number."""

    def __init__(self, run: Run, say: Callable[[str], None]) -> None:
        self.run = run
        self.say = say
        self.bar: tqdm[Any] | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self.bar = tqdm(total=state.max_steps, desc="train", unit="step", dynamic_ncols=True, disable=None)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        assert self.bar is not None
        self.bar.update(state.global_step - self.bar.n)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        logs = logs or {}
        self.run.log("train", step=state.global_step, **logs)
        if "loss" not in logs:
            return
        loss = float(logs["loss"])
        if not math.isfinite(loss):
            raise CheckFailed(
                f"step {state.global_step}: the loss is {loss}. Lower learning_rate, or look at the rows "
                "with `ewtrain show`."
            )
        if self.bar is not None and not self.bar.disable:
            self.bar.set_postfix(loss=f"{loss:.3f}")
        elif state.global_step % max(1, state.max_steps // 10) == 0:
            self.say(f"step {state.global_step} of {state.max_steps}: loss {loss:.3f}")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self.bar is not None:
            self.bar.close()


def losses(trainer: SFTTrainer, fixed_batch: Dataset, held_out: Dataset) -> dict[str, float]:
    """Return the loss per supervised token of fixed training rows, and of held-out ones, both of tasks if any."""
    found = {"fixed_batch_loss": mean_loss(trainer, fixed_batch)}
    if len(held_out):
        found["held_out_loss"] = mean_loss(trainer, held_out)
    return found


@torch.no_grad()
def mean_loss(trainer: SFTTrainer, rows: Dataset) -> float:
    """Return the mean loss of all supervised tokens, by the trainer's own loss, without dropout."""
    model = trainer.model
    assert model is not None
    model.eval()
    total, count = 0.0, 0
    for inputs in trainer.get_eval_dataloader(rows.select_columns(["input_ids", "labels"])):
        supervised = int((inputs["labels"][:, 1:] != IGNORED).sum())
        with trainer.compute_loss_context_manager():
            total += float(trainer.compute_loss(model, inputs)) * supervised
        count += supervised
    model.train()
    return total / count


def lora_parameters(model: PeftModel) -> dict[str, torch.nn.Parameter]:
    """Return the trainable parameters by name; CheckFailed if any is not a LoRA weight, or there is none."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    wrong = [name for name in trainable if ".lora_A." not in name and ".lora_B." not in name]
    if wrong or not trainable:
        raise CheckFailed(
            f"{len(trainable)} trainable tensors, {len(wrong)} of them not LoRA weights: {wrong[:3]}."
        )
    return trainable


def check_trained(trained: dict[str, torch.nn.Parameter], after: dict[str, float]) -> None:
    """Raise CheckFailed unless every lora_B left zero and every loss is a number."""
    still = [name for name, p in trained.items() if ".lora_B." in name and not bool(p.detach().any())]
    if still:
        raise CheckFailed(
            f"{len(still)} of the LoRA's matrices were never updated, the first is {still[0]}. With very few steps "
            "the warm-up's learning rate is 0: raise max_steps, or set warmup_ratio=0."
        )
    unsound = [name for name, p in trained.items() if not bool(torch.isfinite(p.detach()).all())]
    if unsound or not all(math.isfinite(loss) for loss in after.values()):
        raise CheckFailed(f"weights or losses are not numbers ({unsound[:3] or after}). Lower learning_rate.")


def generate_turn(
    model: PeftModel, chat: ChatTokenizer, rows: Dataset, config: SFTRunConfig
) -> dict[str, str] | None:
    """Return one held-out turn, gold and greedily generated; None without a held-out task row."""
    spoken = ("interaction_gen", "next_character")  # short answers say more within few tokens
    tasks = rows["task"][:]
    index = next((i for i, task in enumerate(tasks) if task in spoken), None)
    if index is None:
        index = next((i for i, task in enumerate(tasks) if task != GENERAL), None)
    if index is None:
        return None
    row = rows[index]
    start, end = supervised_runs(row["labels"])[-1]
    prompt = torch.tensor([row["input_ids"][:start]], device=model.device)
    model.eval()
    with torch.no_grad():
        output = model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=config.max_sample_tokens,
            eos_token_id=chat.end_of_turn_ids,
            pad_token_id=pad_id(chat),
            use_cache=True,
        )
    new = [token for token in output[0, start:].tolist() if token not in chat.end_of_turn_ids]
    gold = row["input_ids"][start : end - 1]
    return {"id": row["id"], "gold": chat.decode(gold), "generated": chat.decode(new)}


def save_adapter(
    model: PeftModel, chat: ChatTokenizer, folder: Path, config: SFTRunConfig, base_name: str
) -> None:
    """Write PEFT's files and the chat template, and compare the weights, read anew, with the model's."""
    from safetensors.torch import load_file

    model.peft_config["default"].base_model_name_or_path = base_name  # never a path of this machine's cache
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(
        missing_ok=True
    )  # PEFT's empty form; a model card is written by `ewtrain card`
    (folder / "chat_template.jinja").write_text(chat.template, encoding="utf-8")
    trained = {name.replace(".default.", "."): p.detach() for name, p in lora_parameters(model).items()}
    check_adapter_files(
        folder, {name: tuple(p.shape) for name, p in trained.items()}, config.lora.target_modules
    )
    saved = load_file(folder / WEIGHTS)
    different = [name for name, p in trained.items() if not torch.equal(saved[name], p.cpu())]
    if different:
        raise CheckFailed(f"{folder / WEIGHTS}: {different[0]} was saved with other values than it has.")


def task_fingerprints(prepared: Prepared) -> dict[Any, str]:
    """Return the fingerprint of each task that had training rows."""
    trained = prepared.reports["train"].tasks
    return {name: task.fingerprint() for name, task in TASKS.items() if name in trained}


def task_rows(rows: Dataset) -> Dataset:
    """Return the rows of the tasks, without general chats; all rows if there are none."""
    chosen = [i for i, task in enumerate(rows["task"][:]) if task != GENERAL]
    return rows.select(chosen, keep_in_memory=True) if chosen else rows


def sample(rows: Dataset, most: int, seed: int) -> Dataset:
    """Return at most so many rows, the same ones every time."""
    order = np.random.default_rng(seed).permutation(len(rows))[:most]
    return rows.select(sorted(order), keep_in_memory=True)  # else datasets writes its choice beside the rows


def pad_id(chat: ChatTokenizer) -> int:
    """Return any id to pad with: padding is masked by length, so it may be one that means something."""
    pad = chat.hf.pad_token_id
    return chat.end_of_turn_ids[0] if pad is None else pad


def quiet_libraries() -> None:
    """Keep the libraries' progress bars and notices away: what a user should know is said once, here."""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
