"""THE one writer of labels: a chat as token ids, supervised exactly on what the model must say.

A chat template is used only through its own rendering. Rendered once with placeholders for the contents it
yields the control text between them; the contents' places in the real rendering follow by arithmetic, and
no marker string is ever searched for.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jinja2 import TemplateError
from tokenizers import Encoding, Tokenizer

from ewtrain.chat import Message, TrainOn, assistant, supervised_turns, system, user
from ewtrain.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

IGNORED = -100
ROLES = ("system", "user", "assistant")

RowFault = Literal["bad_message", "empty_answer", "think_text", "template_rewrites", "token_boundary"]

_MAX_SHAPES = 4096


class RowError(DataError):
    """A conversation that cannot be written as tokens and labels; `kind` is what it is counted under."""

    def __init__(self, kind: RowFault, message: str) -> None:
        super().__init__(message)
        self.kind: RowFault = kind


@dataclass(frozen=True)
class Encoded:
    """A conversation's token ids, and for each the id it is a target for, or -100."""

    input_ids: list[int]
    labels: list[int]

    @property
    def num_supervised(self) -> int:
        return len(self.labels) - self.labels.count(IGNORED)


@dataclass(frozen=True)
class _Skeleton:
    """What the template writes around the contents: `pieces[i]` stands before content i, the last one after all."""

    pieces: tuple[str, ...]
    piece_ids: tuple[list[int], ...]
    num_added: int  # control tokens among piece_ids


@dataclass(frozen=True)
class _Layout:
    """A conversation's rendering, with the contents as the template writes them."""

    skeleton: _Skeleton
    contents: list[str]
    text: str


def chat_template_names() -> list[str]:
    """Return the names of the templates that ship with ewtrain."""
    folder = resources.files("recipes") / "chat_templates"
    return sorted(f.name.removesuffix(".jinja") for f in folder.iterdir() if f.name.endswith(".jinja"))


def load_chat_template(name: str) -> str:
    """Return the text of a shipped template, or of a `.jinja` file."""
    if name in chat_template_names():
        return (resources.files("recipes") / "chat_templates" / f"{name}.jinja").read_text("utf-8")
    path = Path(name).expanduser()
    if path.is_file():
        return path.read_text("utf-8")
    raise ConfigError(
        f"chat_template: {name!r} is neither a shipped template ({', '.join(chat_template_names())}) nor a file."
    )


class ChatTokenizer:
    """A fast tokenizer and its chat template, checked once and then used for training and serving alike.

    Refuses at construction, with a ConfigError, a template whose served prompt is not a prefix of the
    trained conversation, or under which the supervised tokens would not be exactly answer + end of turn.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, chat_template: str | None = None) -> None:
        """`chat_template`: a shipped template's name or a file, instead of the tokenizer's own."""
        self.name: str = tokenizer.name_or_path or type(tokenizer).__name__
        if not tokenizer.is_fast:
            raise ConfigError(f"{self.name}: labels need a fast tokenizer (tokenizer.json), and it has none.")
        if chat_template is not None:
            tokenizer.chat_template = load_chat_template(chat_template)
            self._label = f"chat template {chat_template!r} with {self.name}"
        else:
            self._label = f"the chat template of {self.name}"
        if not tokenizer.chat_template:
            raise ConfigError(
                f"{self.name} has no chat template (a base model?). Set chat_template to a shipped one "
                f"({', '.join(chat_template_names())}) or to a .jinja file, or train its instruct model."
            )
        self.hf = tokenizer
        self.template: str = tokenizer.get_chat_template()
        # Own copies of the tokenizer: without the post-processor, which adds a second begin token and trims
        # offsets, and once more without the added tokens, so that text can never become a control token.
        spec = json.loads(tokenizer.backend_tokenizer.to_str())
        spec |= {"post_processor": None, "truncation": None, "padding": None}
        self._whole = Tokenizer.from_str(json.dumps(spec))
        self._plain = Tokenizer.from_str(json.dumps(spec | {"added_tokens": []}))
        self._added = frozenset(self._whole.get_added_tokens_decoder())
        self._skeletons: dict[tuple[tuple[str, ...], bool], _Skeleton] = {}
        self.end_of_turn_ids: list[int] = []
        self._check_template()

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        revision: str | None = None,
        chat_template: str | None = None,
        name: str | None = None,
    ) -> ChatTokenizer:
        """`name`: what messages and reports call it, instead of the path."""
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(name_or_path), revision=revision)
        tokenizer.name_or_path = name or tokenizer.name_or_path
        return cls(tokenizer, chat_template)

    @property
    def template_hash(self) -> str:
        return hashlib.sha256(self.template.encode()).hexdigest()

    @cached_property
    def fingerprint(self) -> str:
        """Return a hash of all that decides the ids: tokenizer, special tokens, template."""
        parts = (self._whole.to_str(), json.dumps(self.hf.special_tokens_map, sort_keys=True), self.template)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def encode(self, messages: Sequence[Message], train_on: TrainOn = "all") -> Encoded:
        """Return the whole conversation's ids; labels are the answers of `train_on`, each with its end of turn."""
        layout = self._layout(messages)
        return self._label_tokens(layout, self._tokenize(layout.text), messages, train_on)

    def encode_many(self, rows: Sequence[tuple[Sequence[Message], TrainOn]]) -> list[Encoded | RowError]:
        """Return `encode` of every row, on all cores; a row that cannot be encoded keeps its place and its reason."""
        layouts: list[_Layout | RowError] = []
        for messages, _ in rows:
            try:
                layouts.append(self._layout(messages))
            except RowError as error:
                layouts.append(error)
        texts = [layout.text for layout in layouts if isinstance(layout, _Layout)]
        encodings = iter(self._whole.encode_batch(texts, add_special_tokens=False))
        encoded: list[Encoded | RowError] = []
        for layout, (messages, train_on) in zip(layouts, rows, strict=True):
            if isinstance(layout, RowError):
                encoded.append(layout)
                continue
            try:
                encoded.append(self._label_tokens(layout, next(encodings), messages, train_on))
            except RowError as error:
                encoded.append(error)
        return encoded

    def encode_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids that a server builds to ask for the next assistant turn."""
        return self._prompt_ids(self._layout(messages, generation_prompt=True))

    def count(self, messages: Sequence[Message], *, generation_prompt: bool = False) -> int:
        """Return the number of tokens of a conversation, or of a prompt."""
        return len(self._prompt_ids(self._layout(messages, generation_prompt=generation_prompt)))

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return self._whole.decode(list(ids), skip_special_tokens=skip_special_tokens)

    # -- from messages to text

    def _layout(self, messages: Sequence[Message], *, generation_prompt: bool = False) -> _Layout:
        self._check_messages(messages)
        roles = tuple(message["role"] for message in messages)
        skeleton = self._skeleton(roles, generation_prompt)
        text = self._render(messages, generation_prompt)
        contents = [message["content"] for message in messages]
        if text == _join(skeleton.pieces, contents):
            return _Layout(skeleton, contents, text)
        # Some templates (Llama 3) strip every content; the server does the same, so the text is still known.
        stripped = [content.strip() for content in contents]
        if text == _join(skeleton.pieces, stripped):
            return _Layout(skeleton, stripped, text)
        index = self._first_rewritten(messages, generation_prompt)
        raise RowError(
            "template_rewrites",
            f"{self._label} does not write message {index} ({roles[index]}: {_excerpt(contents[index])}) as it "
            "stands, so what is trained would not be the row. Change the row, or set another chat_template.",
        )

    def _check_messages(self, messages: Sequence[Message]) -> None:
        if not messages:
            raise RowError("bad_message", "a conversation has no messages.")
        for i, message in enumerate(messages):
            role, content = message.get("role"), message.get("content")
            if role not in ROLES or not isinstance(content, str):
                raise RowError(
                    "bad_message",
                    f"message {i} has role {role!r} and content of type {type(content).__name__}; "
                    f"a role is one of {', '.join(ROLES)}, and content is a string.",
                )
            if "</think>" in content:
                raise RowError(
                    "think_text",
                    f"message {i} ({role}: {_excerpt(content)}) holds '</think>'; some templates delete what "
                    "stands before it. Remove the thinking text.",
                )
            if role == "assistant" and not content.strip():
                raise RowError(
                    "empty_answer", f"message {i} (assistant) is empty: there is nothing to train."
                )

    def _render(self, messages: Sequence[Message], generation_prompt: bool, **template_variables: Any) -> str:
        try:
            text = self.hf.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=generation_prompt, **template_variables
            )
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise RowError(
                "template_rewrites", f"{self._label} refuses the roles {roles}: {error}"
            ) from error
        assert isinstance(text, str)
        return text

    def _skeleton(self, roles: tuple[str, ...], generation_prompt: bool) -> _Skeleton:
        """Return the control text of a conversation's shape, checked for every answer in it."""
        key = (roles, generation_prompt)
        if (found := self._skeletons.get(key)) is not None:
            return found
        pieces = self._pieces(roles, generation_prompt)
        for i, role in enumerate(roles):
            if role != "assistant":
                continue
            # A conversation that the assistant opens has no prompt before that turn.
            prompt = self._pieces(roles[:i], True) if i else pieces[:1]
            for served, trained in zip(prompt, pieces, strict=False):
                if served != trained:
                    raise self._not_a_prefix(served, trained)
        piece_ids = tuple(self._tokenize(piece).ids for piece in pieces)
        for i, role in enumerate(roles):
            if role == "assistant" and not (piece_ids[i + 1] and piece_ids[i + 1][0] in self._added):
                raise RowError(
                    "template_rewrites",
                    f"{self._label} ends an assistant turn with {_excerpt(pieces[i + 1])}, which does not start "
                    "with one special token: the model could not learn where to stop. Set another chat_template.",
                )
        skeleton = _Skeleton(pieces, piece_ids, sum(self._count_added(ids) for ids in piece_ids))
        if len(self._skeletons) >= _MAX_SHAPES:
            self._skeletons.clear()
        self._skeletons[key] = skeleton
        return skeleton

    def _pieces(self, roles: Sequence[str], generation_prompt: bool) -> tuple[str, ...]:
        """Return the text that the template writes before, between and after the contents."""
        # Private-use characters: no template asks about them, strips them or writes them itself.
        marks = [f"\ue000{i}\ue001" for i in range(len(roles))]
        rest = self._render(
            [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)],  # type: ignore[typeddict-item]
            generation_prompt,
        )
        pieces = []
        for i, mark in enumerate(marks):
            piece, found, rest = rest.partition(mark)
            if not found or "\ue000" in piece or mark in rest:
                raise RowError(
                    "template_rewrites",
                    f"{self._label} does not write each message once and in order (roles {', '.join(roles)}; "
                    f"message {i}). Set another chat_template.",
                )
            pieces.append(piece)
        return (*pieces, rest)

    def _not_a_prefix(self, served: str, trained: str) -> RowError:
        way_out = "Set chat_template to a .jinja file that writes every turn alike."
        if "<|im_start|>" in self.template:
            way_out = (
                "Set chat_template=qwen3 (recipes/chat_templates/qwen3.jinja: the same turns without thinking); "
                "it is saved with the adapter and used when serving."
            )
        return RowError(
            "template_rewrites",
            f"{self._label} asks for an answer with {served!r}, but writes {trained!r} before that answer in a "
            f"finished conversation, so what is served would not be a prefix of what was trained. {way_out}",
        )

    def _first_rewritten(self, messages: Sequence[Message], generation_prompt: bool) -> int:
        """Return the first message that alone makes the rendering differ from its contents."""
        for i, message in enumerate(messages):
            alone: list[Message] = [{"role": m["role"], "content": "x"} for m in messages]
            alone[i] = message
            text = self._render(alone, generation_prompt)
            pieces = self._skeleton(tuple(m["role"] for m in messages), generation_prompt).pieces
            if text not in (
                _join(pieces, [m["content"] for m in alone]),
                _join(pieces, [m["content"].strip() for m in alone]),
            ):
                return i
        return len(messages) - 1

    # -- from text to tokens

    def _tokenize(self, text: str) -> Encoding:
        return self._whole.encode(text, add_special_tokens=False)

    def _count_added(self, ids: Sequence[int]) -> int:
        added = self._added
        return sum(i in added for i in ids)

    def _prompt_ids(self, layout: _Layout) -> list[int]:
        ids = self._tokenize(layout.text).ids
        if self._count_added(ids) == layout.skeleton.num_added:
            return ids
        return self._piecewise(layout)[0]

    def _piecewise(self, layout: _Layout) -> tuple[list[int], list[tuple[int, int]]]:
        """Return ids and content spans with the contents tokenised as ordinary text, whatever they spell."""
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        for piece_ids, content in zip(layout.skeleton.piece_ids, layout.contents, strict=False):
            ids += piece_ids
            start = len(ids)
            ids += self._plain.encode(content, add_special_tokens=False).ids
            spans.append((start, len(ids)))
        return ids + layout.skeleton.piece_ids[-1], spans

    def _label_tokens(
        self, layout: _Layout, encoding: Encoding, messages: Sequence[Message], train_on: TrainOn
    ) -> Encoded:
        turns = supervised_turns(messages, train_on)
        ids = encoding.ids
        # More control tokens than the template wrote: some content spells one. It stays ordinary text.
        if self._count_added(ids) == layout.skeleton.num_added:
            spans = self._spans(layout, ids, encoding.offsets, turns)
        else:
            ids, all_spans = self._piecewise(layout)
            spans = [all_spans[i] for i in turns]
        labels = [IGNORED] * len(ids)
        for start, end in spans:
            labels[start : end + 1] = ids[start : end + 1]  # end: the end-of-turn token
        return Encoded(ids, labels)

    def _spans(
        self, layout: _Layout, ids: list[int], offsets: list[tuple[int, int]], turns: list[int]
    ) -> list[tuple[int, int]]:
        """Return the token spans of the contents at `turns`, which must begin and end between tokens."""
        spans = []
        starts = [start for start, _ in offsets]
        at = previous = 0
        for turn in turns:
            for i in range(previous, turn):
                at += len(layout.skeleton.pieces[i]) + len(layout.contents[i])
            previous = turn
            start = at + len(layout.skeleton.pieces[turn])
            end = start + len(layout.contents[turn])
            # A character of several tokens gives them all its offsets: bisect_left finds the first.
            first, last = bisect_left(starts, start), bisect_left(starts, end)
            if (
                last == len(starts)
                or starts[first] != start
                or starts[last] != end
                or ids[last] != layout.skeleton.piece_ids[turn + 1][0]
            ):
                raise RowError(
                    "token_boundary",
                    f"message {turn} (assistant: {_excerpt(layout.contents[turn])}): under {self._label} a token "
                    "runs across the edge of this answer, so the model could not be asked for it. Remove the "
                    "white space at its edges.",
                )
            spans.append((first, last))
        return spans

    # -- the check at construction

    def _check_template(self) -> None:
        """Raise ConfigError unless prompts are prefixes and labels are exactly answers and ends of turn."""
        self._check_clock()
        talk = [user("yes"), assistant("yes"), user("yes"), assistant("no, yes")]
        odd = 'He said: "well…" & <b>\n["Zoë"]: {{ x }} [a thought] (bows) <SCENE_END>\n\n- 木'
        tale = [
            system("Be brief."),
            user(odd),
            assistant(odd),
            user("yes"),
            assistant("{}"),
            user("."),
            assistant("a"),
        ]
        for messages in (talk, tale):
            try:
                encoded = self.encode(messages)
                layout = self._layout(messages)
                prompts = [self.encode_prompt(messages[:i]) for i in supervised_turns(messages, "all")]
            except RowError as error:
                raise ConfigError(str(error)) from error
            for prompt in prompts:
                if encoded.input_ids[: len(prompt)] != prompt or encoded.labels[len(prompt)] == IGNORED:
                    raise ConfigError(
                        f"{self._label}: the tokens of a served prompt are not a prefix of the trained "
                        "conversation. Set another chat_template."
                    )
            if self._piecewise(layout)[0] != encoded.input_ids:
                raise ConfigError(
                    f"{self.name}: its tokenizer joins text across the edges of messages, so that control "
                    "strings in a story could not be kept apart. ewtrain supports byte-level tokenizers "
                    "(Qwen, Llama 3, SmolLM2)."
                )
            for i in supervised_turns(messages, "all"):
                end_id = layout.skeleton.piece_ids[i + 1][0]
                if end_id not in self.end_of_turn_ids:
                    self.end_of_turn_ids.append(end_id)
        encoded = self.encode(talk)
        if encoded.labels.count(self.end_of_turn_ids[0]) != 2:
            raise ConfigError(f"{self._label} ends turns in different ways. Set another chat_template.")
        end = self.decode(self.end_of_turn_ids[:1])
        supervised = self.decode([label for label in encoded.labels if label != IGNORED])
        if supervised != f"yes{end}no, yes{end}":
            raise ConfigError(
                f"{self._label}: supervised text of a probe is {supervised!r} instead of "
                f"{f'yes{end}no, yes{end}'!r}. Set another chat_template."
            )
        begin = self.hf.bos_token_id
        if begin is not None and encoded.input_ids[:2] == [begin, begin]:
            raise ConfigError(f"{self._label} writes the begin token twice. Set another chat_template.")

    def _check_clock(self) -> None:
        """Raise ConfigError for a template that writes today's date: training and serving days differ."""
        days = [
            self._render([user("x")], True, strftime_now=lambda _format, day=day: day)
            for day in ("day A", "day B")
        ]
        if days[0] != days[1]:
            raise ConfigError(
                f"{self._label} writes today's date, so a prompt served tomorrow would differ from what was "
                "trained. Set chat_template to a copy of it with a fixed date."
            )


def _join(pieces: Sequence[str], contents: Sequence[str]) -> str:
    return "".join(text for pair in zip(pieces, contents, strict=False) for text in pair) + pieces[-1]


def _excerpt(text: str, width: int = 40) -> str:
    return repr(text if len(text) <= width else text[: width - 1] + "…")
