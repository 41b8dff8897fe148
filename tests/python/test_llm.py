"""A model through Python: the same answers by every way of asking, and ends that leave nothing behind."""

import asyncio
import os
import pathlib
import subprocess
import sys
import threading

import gil
import pytest

import kdelta

MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "tiny-k3"
PROMPT = "And God said unto him"
GREEDY = dict(temperature=0, max_tokens=12)


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


def test_unknown_options_are_refused_by_name(llm):
    with pytest.raises(TypeError, match="no generation option tempreature"):
        llm.generate(PROMPT, tempreature=1)
    with pytest.raises(TypeError, match="no load option thread"):
        kdelta.LLM(MODEL, thread=1)
    with pytest.raises(ValueError, match="threads"):
        kdelta.LLM(MODEL, threads=-1)
    with pytest.raises(RuntimeError, match="/nowhere"):
        kdelta.LLM("/nowhere")


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
    with pytest.raises(RuntimeError, match="ended"):
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
