"""The server through the official client: what it sends is what that client understands, errors included."""

import json

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

QUESTION = [{"role": "user", "content": "What does light mean?"}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}]


def ask(client, **more):
    return client.chat.completions.create(model="tiny", messages=QUESTION, temperature=0, **more)


def joined(chunks):
    text, reasoning, finish, usage = "", "", None, None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            finish = choice.finish_reason or finish
    return text, reasoning, finish, usage


def test_a_streamed_chat_is_the_chat(client):
    whole = ask(client, max_tokens=60)
    streamed = joined(ask(client, max_tokens=60, stream=True, stream_options={"include_usage": True}))
    message = whole.choices[0].message
    assert streamed[:3] == (message.content, message.reasoning_content, whole.choices[0].finish_reason)
    assert streamed[3].completion_tokens == whole.usage.completion_tokens
    assert whole.usage.prompt_tokens_details.cached_tokens >= 0


def test_logprobs_choices_and_tools_in_one_stream(client):
    seen = [0, 0]
    for chunk in ask(client, max_tokens=8, stream=True, logprobs=True, top_logprobs=2, n=2, tools=TOOLS):
        for choice in chunk.choices:
            for token in choice.logprobs.content if choice.logprobs else []:
                assert len(token.top_logprobs) == 2
                assert bytes(token.bytes).decode(errors="replace") == token.token
                seen[choice.index] += 1
    assert seen == [8, 8]


def test_structured_output_is_what_the_schema_says(client):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    answer = ask(client, max_tokens=60, extra_body={"thinking": False},
                 response_format={"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}})
    assert answer.choices[0].finish_reason == "stop"
    assert json.loads(answer.choices[0].message.content)["ok"] in (True, False)


def test_a_completion_stops_at_a_string_and_repeats_with_its_seed(client):
    def complete(**more):
        return client.completions.create(model="tiny", prompt="In the beginning", max_tokens=20, **more).choices[0]
    text = complete(temperature=0).text
    stopped = complete(temperature=0, stop=text[8:11])
    assert (stopped.text, stopped.finish_reason) == (text[:text.index(text[8:11])], "stop")
    assert complete(seed=7).text == complete(seed=7).text


def test_errors_are_the_clients_own(url, client):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, max_tokens=-1)
    assert refused.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="another", messages=QUESTION)
    with pytest.raises(openai.AuthenticationError), openai.OpenAI(base_url=url + "/v1", api_key="guess") as stranger:
        stranger.models.list()
    assert [m.id for m in client.models.list()] == ["tiny"]


def test_a_stream_that_is_closed_early_leaves_the_server_idle(url, client):
    stream = client.completions.create(model="tiny", prompt="In the", max_tokens=250, temperature=0, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    assert client.completions.create(model="tiny", prompt="In the", max_tokens=1).usage.completion_tokens == 1
    text = client.get("/../metrics", cast_to=str, options={"headers": {"Accept": "text/plain"}})
    values = {s.name: s.value for f in text_string_to_metric_families(text) for s in f.samples if "le" not in s.labels}
    assert values["kdelta_generation_tokens_total"] > 0
