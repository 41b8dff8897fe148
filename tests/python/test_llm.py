"""A model through Python: the same answers by every way of asking, and ends that leave nothing behind."""

import asyncio
import json
import os
import pathlib
import pydoc
import re
import subprocess
import sys
import threading

import gil
import pytest

import kdelta
from kdelta import _core, options

MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "tiny-k3"
PROMPT = "And God said unto him"
GREEDY = dict(temperature=0, max_tokens=12)
SCHEMA = {"type": "object", "properties": {"name": {"enum": ["Noé", "Ham"]}, "age": {"type": "integer"}}, "required": ["name", "age"]}
GRAMMAR = 'root ::= "he " ("said" | "saw") " " [a-z]+ "\\n"'


@pytest.fixture(scope="module")
def llm():
    with kdelta.LLM(MODEL, threads=1, max_length=256, max_sequences=3) as model:
        yield model


def test_the_answer_is_that_of_the_program(llm):
    program = os.environ.get("KDELTA_PROGRAM")
    assert program, "KDELTA_PROGRAM names the kdelta program"
    said = subprocess.run([program, "run", MODEL, "-p", PROMPT, "-n", "12", "--temperature", "0"], capture_output=True, check=True)
    assert said.stdout.decode().rstrip("\n").endswith(llm.generate(PROMPT, **GREEDY).text)


def test_deltas_joined_are_the_answer(llm):
    whole = llm.generate(PROMPT, **GREEDY)
    stream = llm.stream(PROMPT, **GREEDY)
    deltas = list(stream)
    assert "".join(d.text for d in deltas) == whole.text == stream.completion.text
    assert sum((d.tokens for d in deltas), []) == whole.tokens
    assert whole.finish_reason == "length" and whole.prompt_tokens == len(llm.tokenizer.encode(PROMPT))


def test_an_async_iterator_gives_the_same_and_runs_beside_others(llm):
    async def one(seed):
        return "".join([d.text async for d in llm.stream(PROMPT, temperature=0.8, seed=seed, max_tokens=12)])

    async def many():
        return await asyncio.gather(*(one(seed) for seed in range(5)))

    assert asyncio.run(many()) == [llm.generate(PROMPT, temperature=0.8, seed=s, max_tokens=12).text for s in range(5)]


def test_a_list_of_prompts_gives_a_list_of_answers(llm):
    prompts = [PROMPT, "In the beginning", llm.tokenizer.encode("And the")]
    answers = llm.generate(prompts, **GREEDY)
    assert [a.tokens for a in answers] == [llm.generate(p, **GREEDY).tokens for p in prompts]


def test_threads_ask_at_once(llm):
    want, got = llm.generate(PROMPT, **GREEDY).tokens, []
    threads = [threading.Thread(target=lambda: got.append(llm.generate(PROMPT, **GREEDY).tokens)) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == [want] * 6


def test_other_threads_run_while_one_waits_for_an_answer(llm):
    with llm.stream(PROMPT, temperature=0, max_tokens=200, ignore_eos=True) as stream:
        assert gil.is_free_during(lambda: next(stream))


def test_a_chat_is_taken_apart(llm):
    messages = [{"role": "user", "content": "Hello"}]
    reply = llm.chat(messages, temperature=0, max_tokens=60)
    assert reply.text and "<|" not in reply.text
    plain = llm.chat(messages, thinking=False, temperature=0, max_tokens=60)
    assert plain.reasoning == ""
    with pytest.raises((ValueError, RuntimeError), match="role"):
        llm.chat([{"role": "nobody", "content": "x"}])


def test_the_tokenizer_goes_both_ways(llm):
    ids = llm.tokenizer.encode("Wörter, 世界")
    assert llm.tokenizer.decode(ids) == "Wörter, 世界" and max(ids) < llm.vocab_size


def test_leaving_a_stream_ends_the_request(llm):
    with llm.stream(PROMPT, temperature=0, max_tokens=200, ignore_eos=True) as stream:
        next(stream)
    assert stream.result().finish_reason == "cancelled"


@pytest.mark.parametrize("prompt,options,message", [
    ("", {}, "prompt"), ([1 << 30], {}, "token"), (PROMPT, dict(temperature=-1), "temperature"), (PROMPT, dict(max_tokens=0), "max_tokens")])
def test_bad_requests_are_refused_by_name(llm, prompt, options, message):
    with pytest.raises(ValueError, match=message):
        llm.generate(prompt, **options)


@pytest.mark.parametrize("given,flags", [
    (dict(regex="(yes|no), [a-z]+"), ["--regex", "(yes|no), [a-z]+"]),
    (dict(json_schema=SCHEMA), ["--json-schema", json.dumps(SCHEMA)]),
    (dict(json_schema=json.dumps(SCHEMA)), ["--json-schema", json.dumps(SCHEMA)]),
    (dict(json_object=True), ["--json-object"]),
    (dict(grammar=GRAMMAR), ["--grammar", "FILE"]),
    (dict(choice=["the waters", "the firmament"]), ["--choice", "the waters", "--choice", "the firmament"])],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "")
def test_a_constrained_answer_is_that_of_the_program(llm, tmp_path, given, flags):
    (tmp_path / "FILE").write_text(GRAMMAR)
    said = subprocess.run([os.environ["KDELTA_PROGRAM"], "run", MODEL, "-p", PROMPT, "-n", "24", "--temperature", "0.8", "--seed", "7", *flags],
                          capture_output=True, check=True, cwd=tmp_path).stdout.decode().rstrip("\n")
    options = dict(temperature=0.8, seed=7, max_tokens=24, **given)
    text = llm.generate(PROMPT, **options).text
    assert text.strip() and said.endswith(text.rstrip("\n"))
    assert text != llm.generate(PROMPT, temperature=0.8, seed=7, max_tokens=24).text
    assert text == "".join(d.text for d in llm.stream(PROMPT, **options))


def test_a_constraint_of_a_chat_holds_its_text(llm):
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    for with_tools in (None, tools):
        reply = llm.chat([{"role": "user", "content": "Hello"}], thinking=False, tools=with_tools, temperature=0, max_tokens=60, choice=["yes", "no"])
        assert reply.text in ("yes", "no") or reply.calls
    assert llm.chat([{"role": "user", "content": "Hello"}], thinking=False, temperature=0, max_tokens=60, choice=["no"]).text == "no"


def test_constraints_that_are_none_are_refused_by_name(llm):
    with pytest.raises(ValueError, match="regex, json_schema, json_object, grammar, choice: more than one"):
        llm.generate(PROMPT, regex="a", choice=["b"])
    with pytest.raises(ValueError, match="regex"):
        llm.generate(PROMPT, regex="(")
    with pytest.raises(ValueError, match="json_schema: #/contains: "):
        llm.generate(PROMPT, json_schema={"contains": {}})
    with pytest.raises(ValueError, match="choice: no texts"):
        llm.generate(PROMPT, choice=[])
    for given in (dict(json_schema=5), dict(choice="yes"), dict(regex=b"a"), dict(json_object="yes"), dict(grammar=pathlib.Path("x"))):
        with pytest.raises(TypeError, match=f"{next(iter(given))}: .*, expected "):
            llm.generate(PROMPT, **given)
    assert llm.generate(PROMPT, regex=None, json_object=False, **GREEDY).text == llm.generate(PROMPT, **GREEDY).text


def test_unknown_options_are_refused_with_the_accepted_ones(llm):
    with pytest.raises(TypeError, match="no generation option tempreature, expected one of temperature, .*, choice$"):
        llm.generate(PROMPT, tempreature=1)
    with pytest.raises(TypeError, match="no load option thread, expected one of device, .*, prefix_snapshots$"):
        kdelta.LLM(MODEL, thread=1)
    with pytest.raises(ValueError, match="threads"):
        kdelta.LLM(MODEL, threads=-1)
    with pytest.raises(TypeError, match="threads: 'two', expected int"):
        kdelta.LLM(MODEL, threads="two")
    with pytest.raises(TypeError, match="seed: -1, expected int, 0 to"):
        llm.generate(PROMPT, seed=-1)


def test_help_and_types_name_every_option():
    assert list(options.Generation.__annotations__) == _core.generation_options()
    assert sorted(options.Load.__annotations__) == sorted(_core.load_options())
    for function in (kdelta.LLM.generate, kdelta.LLM.stream, kdelta.LLM.chat, kdelta.LLM.chat_stream):
        words = set(re.findall(r"\w+", pydoc.render_doc(function, renderer=pydoc.plaintext)))
        assert words >= set(_core.generation_options()), function
    assert set(re.findall(r"\w+", kdelta.LLM.__doc__)) >= set(_core.load_options())


def test_a_model_that_is_no_folder_is_refused():
    with pytest.raises(FileNotFoundError, match="model: no such folder: '/nowhere'"):
        kdelta.LLM("/nowhere")
    with pytest.raises(NotADirectoryError, match="config.json"):
        kdelta.LLM(MODEL / "config.json")
    with pytest.raises(TypeError, match=r"model: 5 \(int\), expected the path"):
        kdelta.LLM(5)


@pytest.mark.parametrize("prompt,name", [(5, "prompt"), (None, "prompt"), (b"In", "prompt"), ({"a": 1}, "prompt"), (["In", 5.5], r"prompt\[1\]")])
def test_a_prompt_of_another_type_is_refused(llm, prompt, name):
    with pytest.raises(TypeError, match=name + r": .* \(\w+\), expected text \(str\)"):
        llm.generate(prompt)


@pytest.mark.parametrize("messages,name", [("hi", "messages"), (None, "messages"), ({"role": "user"}, "messages"), (["hi"], r"messages\[0\]")])
def test_messages_of_another_type_are_refused(llm, messages, name):
    with pytest.raises(TypeError, match=name + r": .* \(\w+\), expected a "):
        llm.chat(messages)


def test_loading_tells_how_far_it_is():
    calls = []
    kdelta.LLM(MODEL, threads=1, max_length=64, progress=lambda done, total: calls.append((done, total))).close()
    assert calls and calls[-1][0] == calls[-1][1] > 0


def test_what_progress_raises_comes_out_of_loading():
    def stop(done, total):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        kdelta.LLM(MODEL, threads=1, max_length=64, progress=stop)


def test_a_closed_model_refuses():
    model = kdelta.LLM(MODEL, threads=1, max_length=64)
    model.close()
    model.close()
    with pytest.raises(RuntimeError, match="^this model was closed; load it anew$"):
        model.generate(PROMPT)


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)


def test_a_program_may_end_in_the_middle_of_an_answer():
    done = run(f"import kdelta; m = kdelta.LLM({str(MODEL)!r}, threads=1, max_length=256);"
               "s = m.stream('In', max_tokens=200, ignore_eos=True); next(s)")
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_the_child_of_a_fork_is_refused():
    done = run(f"import kdelta, os; m = kdelta.LLM({str(MODEL)!r}, threads=1, max_length=64); pid = os.fork()\n"
               "if pid == 0:\n"
               "  try: m.generate('In'); os._exit(1)\n"
               "  except RuntimeError as e: os._exit(0 if 'fork' in str(e) else 2)\n"
               "assert os.waitpid(pid, 0)[1] == 0")
    assert done.returncode == 0, done.stderr


def test_import_starts_no_thread_and_opens_no_device():
    done = run("import kdelta, os; assert len(os.listdir('/proc/self/task')) == 1;"
               "assert not any(n in open('/proc/self/maps').read() for n in ('libcuda.so', 'nvidia'))")
    assert done.returncode == 0, done.stderr
