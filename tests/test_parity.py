"""Prompt against row, in token ids: every task, every turn, every chat template family."""

from __future__ import annotations

import pytest
from conftest import SAMPLES
from hypothesis import given, settings
from stories import timelines
from test_rows import live_rows, rows_of, served_inputs
from toy_tokenizers import FAMILIES, toy_tokenizer

from ewtrain.chat import Example
from ewtrain.data.tokenize import IGNORED, ChatTokenizer
from ewtrain.story import TASK_NAMES, Timeline
from ewtrain.tasks import TASKS
from ewtrain.timeline_file import read_timeline

TEMPLATES = {"qwen3": "qwen3"}  # the stock one of the hybrid models is refused; ours stands in


def chat_of(family: str) -> ChatTokenizer:
    return ChatTokenizer(toy_tokenizer(family), TEMPLATES.get(family))


CHATS = {family: chat_of(family) for family in FAMILIES}


def check(chat: ChatTokenizer, row: Example) -> int:
    """Check every turn of a row; return how many there are."""
    trained = chat.encode(row.messages, row.train_on)
    own = chat.hf.apply_chat_template(row.messages, tokenize=True, return_dict=False)
    assert trained.input_ids == own  # TPL H63: what a server's tokenizer makes of the same messages
    turns = [i for i, message in enumerate(row.messages) if message["role"] == "assistant"]
    expected = []
    for i in turns:
        prompt = chat.encode_prompt(row.messages[:i])
        assert trained.input_ids[: len(prompt)] == prompt
        assert trained.labels[len(prompt) - 1] == IGNORED and trained.labels[len(prompt)] != IGNORED
        expected.append(row.messages[i]["content"])
    supervised = [token for token in trained.labels if token != IGNORED]
    text = chat.decode(supervised)
    ends = {chat.decode([token]) for token in chat.end_of_turn_ids}
    assert len(ends) == 1
    assert text == "".join(answer + next(iter(ends)) for answer in expected)
    return len(turns)


@pytest.mark.parametrize("family", FAMILIES)
def test_tpl_h63_every_turn_of_the_samples_rows_is_served_as_it_was_trained(family: str) -> None:
    """The families share the rows out between them, every task to each."""
    rows = [made for path in sorted(SAMPLES.glob("*.timeline.json")) for made in rows_of(read_timeline(path))]
    rows.sort(key=lambda made: made[0].task)
    share = rows[list(FAMILIES).index(family) :: len(FAMILIES)]
    for row, inp, _ in share:
        assert check(CHATS[family], row) >= 1
        served = TASKS[row.task].render(inp, wording=row.wording or 0).messages
        prompt = CHATS[family].encode_prompt(served)
        assert CHATS[family].encode(row.messages, "all").input_ids[: len(prompt)] == prompt
    assert {row.task for row, _, _ in share} == set(TASK_NAMES)


@settings(max_examples=5)
@given(timelines(max_scenes=2))
def test_every_turn_of_a_generated_storys_rows_is_served_as_it_was_trained(timeline: Timeline) -> None:
    """A turn's prompt is made of what a client knows at that moment, and not cut out of the row."""
    made, live = rows_of(timeline), live_rows(timeline)
    moments = [(row, inp) for row, inp, _ in made if row.id not in live]
    moments += [(live[row_id][0], inp) for row_id, _, inp in served_inputs(timeline)]
    prompts = [(row, TASKS[row.task].render(inp, wording=row.wording or 0).messages) for row, inp in moments]
    for chat in CHATS.values():
        trained = {row.id: chat.encode(row.messages, row.train_on) for row, _, _ in made}
        assert sum(check(chat, row) for row, _, _ in made) == len(prompts)
        for row, served in prompts:
            prompt = chat.encode_prompt(served)
            assert trained[row.id].input_ids[: len(prompt)] == prompt
            assert trained[row.id].labels[len(prompt) - 1] == IGNORED
            assert trained[row.id].labels[len(prompt)] != IGNORED
