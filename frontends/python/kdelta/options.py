"""The options of models and of requests, for type checkers and for help()."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, TypeVar


class Load(TypedDict, total=False):
    """None is as if it was not given."""

    device: str | None
    exact: bool | None
    dtype: str | None
    state_dtype: str | None
    kda_gate: str | None
    threads: int | None
    isa: str | None
    force: str | None
    max_length: int | None
    token_budget: int | None
    max_sequences: int | None
    cache_tokens: int | None
    drafts: int | None
    draft_model: str | None
    prefix_snapshots: int | None


class Generation(TypedDict, total=False):
    """None is as if it was not given."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: dict[int, float] | None
    seed: int | None
    max_tokens: int | None
    min_tokens: int | None
    stop: Sequence[str] | None
    stop_ids: Sequence[int] | None
    ignore_eos: bool | None
    logprobs: int | None
    show_specials: bool | None
    regex: str | None
    json_schema: dict[str, Any] | str | None
    json_object: bool | None
    grammar: str | None
    choice: Sequence[str] | None


_GENERATION = """
Options:
  temperature, top_p, top_k, min_p   how tokens are drawn; temperature 0 takes the best one
  seed                               the same seed draws the same tokens
  repetition_penalty, presence_penalty, frequency_penalty, logit_bias (by token id)
  max_tokens, min_tokens, stop (list of str), stop_ids, ignore_eos   when the answer ends
  logprobs                           n: of the chosen and the n best tokens
  show_specials                      names of special tokens appear in the text
At most one of these says what the answer's text must be; one that max_tokens cuts is a beginning of such a text:
  regex                              a pattern of the whole answer
  json_schema                        a dict, or its text: the answer is valid under it
  json_object                        True: any JSON object
  grammar                            text in GBNF, the grammars of llama.cpp
  choice                             a list of str: the answer is one of them
What is not given is as the model's generation_config.json has it.
"""

F = TypeVar("F", bound=Callable[..., Any])


def takes_generation_options(function: F) -> F:
    """Its help ends with what the options are."""
    function.__doc__ = inspect.cleandoc(function.__doc__ or "") + "\n" + _GENERATION
    return function
