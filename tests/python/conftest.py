"""One server for the tests that ask one."""

import os
import pathlib
import re
import subprocess

import pytest

MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "tiny-k3"


@pytest.fixture(scope="session")
def url():
    program = os.environ.get("KDELTA_PROGRAM")
    assert program, "KDELTA_PROGRAM names the kdelta program"
    flags = ["--port", "0", "-t", "1", "-c", "1024", "-N", "4", "--served-model-name", "tiny", "--api-key", "secret", "--no-access-log"]
    server = subprocess.Popen([program, "serve", str(MODEL), *flags], stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            if found := re.match(r"ready: (http://\S+)", line):
                yield found[1]
                break
        else:
            pytest.fail("the server ended before it was ready")
    finally:
        server.terminate()
        server.stderr.close()  # nobody reads the log any more
        assert server.wait(timeout=60) == 0, "told to stop, it drains and ends well"


@pytest.fixture(scope="session")
def client(url):
    import openai  # here, since not every test's environment has it

    with openai.OpenAI(base_url=url + "/v1", api_key="secret", max_retries=0) as one:
        yield one
