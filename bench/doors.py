#!/usr/bin/env python3
"""What a call costs beside its work, on no rows at all: through C, over DLPack from numpy, and through torch.ops where PyTorch is
installed. CPU time of one thread.

    cmake --install build --prefix PREFIX --component library && pip install .
    python bench/doors.py --library PREFIX [--topic doors]

--topic writes bench/results/<cpu>/<date>-doors.json. Needs numpy and the kdelta module. --device cuda: on torch's CUDA tensors
instead, where C is kdelta_gpu_c_program --time.
"""

import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

import numpy

import kdelta
from kdelta import ops

ROOT = pathlib.Path(__file__).resolve().parents[1]
CALLS, REPETITIONS = 20000, 7


def through_c(library):
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "doors"
        libs = next(library.resolve().glob("**/libkdelta.so")).parent
        subprocess.run(["gcc", "-std=c99", "-D_POSIX_C_SOURCE=200809L", "-O2", "-I", library / "include", ROOT / "bench/doors.c", "-o", program, f"-L{libs}",
                        "-lkdelta", f"-Wl,-rpath,{libs}"], check=True)
        times = {}
        for line in subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines():
            name, ns = line.split()
            times.setdefault(name, []).append(float(ns) * 1e-3)
        return times


def kda_on_no_rows():
    rows, zeros, f32 = numpy.empty((0, 2, 16), numpy.float32), numpy.zeros, numpy.float32
    return dict(q=rows, k=rows, v=rows, gate=rows, beta=numpy.empty((0, 2), f32), a_log=zeros(2, f32), dt_bias=zeros((2, 16), f32),
                state=zeros((2, 2, 16, 16), f32), cu=zeros(1, numpy.int32), slot=zeros((0, 1), numpy.int32), accepted=zeros(0, numpy.int32),
                fresh=zeros(0, numpy.uint8), n_prefill=0, n_decode=0)


def timed(calls):
    times = {name: [] for name in calls}
    for _ in range(REPETITIONS):
        for name, call in calls.items():
            begin = time.process_time()
            for _ in range(CALLS):
                call()
            times[name].append((time.process_time() - begin) / CALLS * 1e6)
    return times


def over_dlpack():
    context = ops.Context(threads=1)
    empty, kda = numpy.empty((0, 32), numpy.float32), kda_on_no_rows()
    out = kda["v"].copy()
    return timed({"activation": lambda: ops.activation(empty, empty, "swiglu", out=empty, context=context),
                  "kda": lambda: ops.kda(**kda, out=out, context=context)})


def in_torch(device):
    import torch

    torch.set_num_threads(1)
    return (torch.empty(0, 32, device=device),
            {n: torch.from_numpy(a).to(device) if isinstance(a, numpy.ndarray) else a for n, a in kda_on_no_rows().items()})


def over_dlpack_from_torch(device):
    empty, kda = in_torch(device)
    out = kda["v"].clone()
    return timed({"activation": lambda: ops.activation(empty, empty, "swiglu", out=empty), "kda": lambda: ops.kda(**kda, out=out)})


def through_torch(device):
    """Results are new tensors there, by an allocation of PyTorch's."""
    import torch

    import kdelta.torch

    empty, kda = in_torch(device)
    times = timed({"activation": lambda: torch.ops.kdelta.activation(empty, empty, "swiglu"),
                   "kda": lambda: torch.ops.kdelta.kda(**kda, max_len=1, scale=1.0)})
    return f"torch.ops ({kdelta.torch.implementation})", times


def machine():
    """As the other benchmarks name it."""
    fields = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M))
    cpu = f'{fields["model name"]}, family {fields["cpu family"]} model {fields["model"]}'
    folder = re.sub("[^a-z0-9]+", "-", fields["model name"].lower()).strip("-") + f'-f{fields["cpu family"]}m{fields["model"]}'
    return cpu, folder


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", type=pathlib.Path, help="for the C interface on the CPU")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--topic")
    args = parser.parse_args()
    rows = []
    doors = [("C", through_c(args.library))] if args.library else []
    if args.device == "cpu":
        doors.append(("DLPack from numpy", over_dlpack()))
    if importlib.util.find_spec("torch"):
        where = "" if args.device == "cpu" else " on CUDA"
        doors += [(name + where, times) for name, times in (("DLPack from torch", over_dlpack_from_torch(args.device)),
                                                                          through_torch(args.device))]
    operands = {"activation": 3, "kda": 14}
    for door, times in doors:
        for name, t in times.items():
            median = statistics.median(t)
            rows.append({"what": f"a call of {name} on no rows through {door}, {operands[name]} tensors", "median": round(median, 3), "unit": "us",
                         "best": round(min(t), 3), "spread": round(max(t) / min(t), 3), "repetitions": len(t)})
            print(f'{rows[-1]["what"]}: median {median:.3f} us, best {min(t):.3f}, worst {max(t):.3f}')
    if not args.topic:
        return
    cpu, folder = machine()
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty=+changes", "--abbrev=12", "--exclude=*"], capture_output=True, text=True,
                            check=True).stdout.strip()
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    out = ROOT / "bench/results" / folder / f"{date}-{args.topic}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"machine": {"cpu": cpu, "isa": kdelta._core.machine_isa()[-1], "cpus": len(os.sched_getaffinity(0))}, "commit": commit, "date": date, "threads": 1,
                               "command": f"python bench/doors.py --library PREFIX --topic {args.topic}", "kdelta": kdelta.__version__,
                               "measurements": rows}, indent=1) + "\n")
    print(out.relative_to(ROOT))


if __name__ == "__main__":
    main()
