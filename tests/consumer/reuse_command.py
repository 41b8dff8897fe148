#!/usr/bin/env python3
"""A compiler launcher that copies what another build tree has compiled by the very same command, and runs the rest.

reuse_command.py TREE COMMAND...: TREE/consumer_commands.json names the commands. Only the places of outputs may differ.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys


def normal(words):
    """The command without its launcher and its outputs; and the output."""
    kept, out, skip = [], None, None
    for word in words:
        if skip:
            out = word if skip == "-o" else out
            skip = None
        elif word in ("-o", "-MT", "-MF"):
            skip = word
        elif not word.endswith("/ccache") and word != "-MD":
            kept.append(word)
    return kept, out


def main():
    tree, command = pathlib.Path(sys.argv[1]), sys.argv[2:]
    kept, out = normal(command)
    index = tree / "consumer_commands.json"
    known = json.loads(index.read_text()).get(kept[-1]) if index.exists() else None
    if known and known["command"] == kept and "-MF" in command and (tree / known["output"]).exists():
        shutil.copyfile(tree / known["output"], out)
        pathlib.Path(command[command.index("-MF") + 1]).write_text(f"{out}: {kept[-1]}\n")
        return 0
    if os.environ.get("KDELTA_REUSE_LOG"):
        with open(os.environ["KDELTA_REUSE_LOG"], "a", encoding="utf-8") as log:
            log.write(kept[-1] + "\n")
    return subprocess.call(command)


if __name__ == "__main__":
    sys.exit(main())
