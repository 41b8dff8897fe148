"""A model and its answers."""

from __future__ import annotations

import asyncio
import atexit
import errno
import json
import operator
import os
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

from kdelta import _core
from kdelta.options import Generation, Load, takes_generation_options

Prompt = str | Sequence[int]
Message = dict[str, Any]

_open: weakref.WeakSet[LLM] = weakref.WeakSet()
_WAIT_MS = 100  # between looks at signals while nothing comes


@dataclass
class Delta:
    """A piece of an answer; its tokens, and the text that they complete."""

    text: str = ""
    reasoning: str = ""
    tokens: list[int] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Completion:
    """A whole answer. Joined, the deltas of a stream are the same."""

    text: str = ""
    reasoning: str = ""
    tokens: list[int] = field(default_factory=list)
    calls: list[dict[str, str]] = field(default_factory=list)
    logprobs: list[tuple[int, float, list[tuple[int, float]]]] = field(default_factory=list)
    finish_reason: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    seconds: tuple[float, float, float] = (0, 0, 0)  # queued, prefill, decode


class Stream(Iterator[Delta], AsyncIterator[Delta]):
    """An answer while it is made, for `for` and for `async for`. `completion` holds what came so far; close() or leaving a
    `with` block ends the request."""

    def __init__(self, answer: _core.Answer):
        self._answer = answer
        self._done = False
        self.completion = Completion()

    def _take(self, raw: dict[str, Any]) -> Delta:
        delta, whole = Delta(tokens=raw["tokens"]), self.completion
        for part in raw["parts"]:
            if part["kind"] == "reasoning":
                delta.reasoning += part["text"]
            elif part["kind"] == "call":
                delta.calls.append(part)
                self._add_call(part)
            else:
                delta.text += part["text"]
        whole.text += delta.text
        whole.reasoning += delta.reasoning
        whole.tokens += delta.tokens
        whole.logprobs += raw["logprobs"]
        end = raw.get("end")
        if end is not None:
            self._done = True
            whole.finish_reason, whole.seconds = end["finish_reason"], end["seconds"]
            whole.prompt_tokens, whole.cached_tokens = end["prompt_tokens"], end["cached_tokens"]
            if end["finish_reason"] == "error":
                raise RuntimeError(end["error"])
        return delta

    def _add_call(self, part: dict[str, Any]) -> None:
        calls = self.completion.calls
        while len(calls) <= part["index"]:
            calls.append({"id": "", "name": "", "arguments": ""})
        for key in ("id", "name", "arguments"):
            calls[part["index"]][key] += part[key]

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Delta:
        while not self._done:
            raw = self._answer.wait(_WAIT_MS)
            if raw is None:
                continue
            delta = self._take(raw)
            if delta.tokens or delta.text or delta.reasoning or delta.calls:
                return delta
        raise StopIteration

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Delta:
        loop = asyncio.get_running_loop()
        while not self._done:
            raw = self._answer.wait(0)
            if raw is None:
                ready = loop.create_future()
                loop.add_reader(self._answer.fileno(), lambda: ready.done() or ready.set_result(None))
                try:
                    await ready
                finally:
                    loop.remove_reader(self._answer.fileno())
                continue
            delta = self._take(raw)
            if delta.tokens or delta.text or delta.reasoning or delta.calls:
                return delta
        raise StopAsyncIteration

    def result(self) -> Completion:
        """Waits for the end."""
        for _ in self:
            pass
        return self.completion

    def close(self) -> None:
        self._answer.cancel()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ids_of(value: Any) -> list[int] | None:
    """None when it is no sequence of ids."""
    if isinstance(value, (bytes, bytearray, Mapping)):
        return None
    try:
        return [operator.index(i) for i in value]
    except TypeError:
        return None


def _refuse(name: str, value: Any, expected: str) -> TypeError:
    shown = repr(value)
    return TypeError(f"{name}: {shown if len(shown) <= 60 else shown[:57] + '...'} ({type(value).__name__}), expected {expected}")


def _folder(model: Any) -> str:
    try:
        path = os.fsdecode(model)
    except TypeError:
        raise _refuse("model", model, "the path of a model's folder (str or os.PathLike)") from None
    if not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, "model: no such folder", path)
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, "model: a file, expected a model's folder", path)
    return path


def _message_lines(messages: Any) -> str:
    expected = 'a list of messages, each a dict such as {"role": "user", "content": "Hello"}'
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise _refuse("messages", messages, expected)
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            raise _refuse(f"messages[{i}]", message, 'a dict such as {"role": "user", "content": "Hello"}')
    return "".join(json.dumps(m) + "\n" for m in messages)


def _for_core(options: Generation) -> dict[str, Any]:
    out: dict[str, Any] = {**options}
    if isinstance(out.get("json_schema"), Mapping):
        out["json_schema"] = json.dumps(out["json_schema"], ensure_ascii=False)
    return out


class Tokenizer:
    """The model's own."""

    def __init__(self, model: _core.Model):
        self._model = model

    def encode(self, text: str, specials: bool = False) -> list[int]:
        """specials: the names of special tokens in the text become those tokens."""
        return self._model.tokenize(text, specials)

    def decode(self, ids: Sequence[int], specials: bool = False) -> str:
        return self._model.detokenize(list(ids), specials)


class LLM:
    """A loaded model. Safe for several threads; up to max_sequences requests run at once, others wait.

    options: device ("cpu", "cuda", "cuda:N"), dtype ("bf16", "fp32"), state_dtype, threads, max_length, max_sequences,
    cache_tokens, token_budget, drafts, draft_model, prefix_snapshots, exact, kda_gate, isa, force.
    progress is called with (done, total) bytes while the model is loaded.
    """

    def __init__(self, model: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None,
                 **options: Unpack[Load]):
        self._model = _core.Model(_folder(model), dict(options), progress)
        self.tokenizer = Tokenizer(self._model)
        _open.add(self)

    def close(self) -> None:
        """Ends what runs and the engine's thread; afterwards requests are refused. Done by itself when the program ends."""
        self._model.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def max_length(self) -> int:
        """Tokens of prompt and answer together."""
        return self._model.max_length

    @property
    def device(self) -> str:
        return self._model.device

    def _ids(self, prompt: Any, name: str = "prompt") -> list[int]:
        ids = self._model.tokenize(prompt, False) if isinstance(prompt, str) else _ids_of(prompt)
        if ids is None:
            raise _refuse(name, prompt, "text (str) or token ids (a list of int)")
        return ids

    @takes_generation_options
    def stream(self, prompt: Prompt, **options: Unpack[Generation]) -> Stream:
        """The answer to a prompt (text or ids) while it is made."""
        return Stream(self._model.submit(self._ids(prompt), _for_core(options), False, True, False))

    @takes_generation_options
    def generate(self, prompt: Prompt | Sequence[Prompt], **options: Unpack[Generation]) -> Any:
        """The Completion of a prompt (text or ids), or a list of them for a list of prompts, which run together."""
        if isinstance(prompt, str) or _ids_of(prompt) is not None:
            return self.stream(prompt, **options).result()  # type: ignore[arg-type]
        if isinstance(prompt, (bytes, bytearray, Mapping)) or not isinstance(prompt, Sequence):
            raise _refuse("prompt", prompt, "text (str), token ids (a list of int), or a list of prompts")
        prompts = [self._ids(p, f"prompt[{i}]") for i, p in enumerate(prompt)]
        streams = [self.stream(p, **options) for p in prompts]
        return [s.result() for s in streams]

    def chat_prompt(self, messages: Sequence[Message], *, thinking: bool = True, effort: str = "",
                    tools: Sequence[dict[str, Any]] | None = None) -> list[int]:
        """The ids of a conversation in the model's own format. Messages are as in the OpenAI API; text in them never
        becomes a control token."""
        return self._model.chat_prompt(_message_lines(messages), thinking, effort, json.dumps(list(tools)) if tools else "")

    @takes_generation_options
    def chat_stream(self, messages: Sequence[Message], *, thinking: bool = True, effort: str = "",
                    tools: Sequence[dict[str, Any]] | None = None, **options: Unpack[Generation]) -> Stream:
        """The assistant's next message while it is made. What constrains its text leaves the thinking before it free, and the
        calls beside it where there are tools."""
        ids = self.chat_prompt(messages, thinking=thinking, effort=effort, tools=tools)
        return Stream(self._model.submit(ids, _for_core(options), True, thinking, bool(tools)))

    @takes_generation_options
    def chat(self, messages: Sequence[Message], *, thinking: bool = True, effort: str = "",
             tools: Sequence[dict[str, Any]] | None = None, **options: Unpack[Generation]) -> Completion:
        """The assistant's next message, taken apart into reasoning, text and tool calls. What constrains its text leaves the
        thinking before it free, and the calls beside it where there are tools."""
        return self.chat_stream(messages, thinking=thinking, effort=effort, tools=tools, **options).result()


@atexit.register
def _close_all() -> None:
    for llm in list(_open):
        llm.close()
