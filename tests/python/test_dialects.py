"""The Responses and Messages APIs through the official clients, and calls that must be made through both."""

import json

import anthropic
import openai
import pytest

QUESTION = [{"role": "user", "content": "What does light mean?"}]
GREEDY = {"extra_body": {"temperature": 0}}  # which this client no longer names
SCHEMA = {"type": "object", "properties": {"book": {"enum": ["Genesis", "Exodus"]}, "verse": {"type": "integer", "minimum": 1, "maximum": 9}},
          "required": ["book", "verse"], "additionalProperties": False}


@pytest.fixture(scope="module")
def claude(url):
    with anthropic.Anthropic(base_url=url, api_key="secret", max_retries=0) as one:
        yield one


def check(arguments):
    assert arguments["book"] in ("Genesis", "Exodus") and 1 <= arguments["verse"] <= 9


def test_a_streamed_response_is_the_response(client):
    ask = {"model": "tiny", "input": "What does light mean?", "temperature": 0, "max_output_tokens": 120}
    whole = client.responses.create(**ask)
    with client.responses.stream(**ask) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        streamed = stream.get_final_response()
    assert (streamed.output_text, streamed.status, streamed.usage.output_tokens) == (whole.output_text, whole.status, whole.usage.output_tokens)
    assert text == whole.output_text
    assert [i.type for i in streamed.output] == [i.type for i in whole.output]
    assert whole.output[0].type == "reasoning" and whole.output[0].content[0].text


def test_a_response_calls_and_takes_the_result_back(client):
    tools = [{"type": "function", "name": "read", "parameters": SCHEMA, "strict": True}]
    ask = {"model": "tiny", "tools": tools, "temperature": 0}
    first = client.responses.create(input=QUESTION, tool_choice="required", parallel_tool_calls=False, reasoning={"effort": "none"}, **ask)
    [call] = first.output
    assert (call.type, call.status) == ("function_call", "completed")
    check(json.loads(call.arguments))
    back = [*QUESTION, call, {"type": "function_call_output", "call_id": call.call_id, "output": "And God said."}]
    second = client.responses.create(input=back, max_output_tokens=5, **ask)
    assert second.usage.input_tokens > first.usage.input_tokens


def test_a_response_has_no_memory_and_says_so(client):
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(model="tiny", input="Hi", previous_response_id="resp_1")
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")


def test_a_chat_calls_what_it_must(client):
    tools = [{"type": "function", "function": {"name": "read", "parameters": SCHEMA}}]
    choice = {"type": "function", "function": {"name": "read"}}
    ask = {"model": "tiny", "messages": QUESTION, "tools": tools, "tool_choice": choice, "temperature": 0, "extra_body": {"thinking": False}}
    whole = client.chat.completions.create(**ask).choices[0]
    assert whole.finish_reason == "tool_calls"
    check(json.loads(whole.message.tool_calls[0].function.arguments))
    with client.chat.completions.stream(**ask) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0]
    assert streamed.message.tool_calls[0].function.arguments == whole.message.tool_calls[0].function.arguments


def test_a_streamed_message_is_the_message(claude):
    for thinking in ({"type": "disabled"}, {"type": "adaptive"}):
        ask = {"model": "tiny", "max_tokens": 120, "messages": QUESTION, "thinking": thinking, **GREEDY}
        whole = claude.messages.create(**ask)
        with claude.messages.stream(**ask) as stream:
            text = "".join(stream.text_stream)
            streamed = stream.get_final_message()
        assert [b.type for b in streamed.content] == [b.type for b in whole.content]
        assert streamed.content[-1].text == whole.content[-1].text == text
        assert (streamed.stop_reason, streamed.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
        total = claude.messages.count_tokens(model="tiny", messages=QUESTION, thinking=thinking).input_tokens
        for usage in (whole.usage, streamed.usage):
            assert usage.input_tokens + usage.cache_read_input_tokens == total


def test_a_message_calls_and_takes_the_result_back(claude):
    ask = {"model": "tiny", "max_tokens": 120, **GREEDY, "tools": [{"name": "read", "input_schema": SCHEMA}]}
    choice = {"type": "tool", "name": "read"}
    with claude.messages.stream(messages=QUESTION, tool_choice=choice, **ask) as stream:
        first = stream.get_final_message()
    assert first.stop_reason == "tool_use"
    check(first.content[0].input)
    back = [*QUESTION, {"role": "assistant", "content": first.content},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": first.content[0].id, "content": "And God said."}]}]
    second = claude.messages.create(messages=back, **{**ask, "max_tokens": 5})
    assert second.usage.input_tokens + second.usage.cache_read_input_tokens > first.usage.input_tokens


def test_a_message_stops_at_a_sequence_and_its_errors_are_the_clients_own(url, claude):
    text = claude.messages.create(model="tiny", max_tokens=60, messages=QUESTION, **GREEDY).content[0].text
    stopped = claude.messages.create(model="tiny", max_tokens=60, messages=QUESTION, **GREEDY, stop_sequences=[text[4:6]])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", text[4:6])
    assert stopped.content[0].text == text[:text.index(text[4:6])]
    with pytest.raises(anthropic.BadRequestError) as refused:
        claude.messages.create(model="tiny", max_tokens=1, messages=[])
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    assert refused.value.request_id
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="another", max_tokens=1, messages=QUESTION)
    with pytest.raises(anthropic.AuthenticationError), anthropic.Anthropic(base_url=url, api_key="guess") as stranger:
        stranger.messages.create(model="tiny", max_tokens=1, messages=QUESTION)
