"""Second opinion for the engine's tests: what this PyTorch model says of the exported files, in float32 without TF32.

    python reference.py TOKENS.npz ../../models/tiny-k3 OUT reference [--full]

writes OUT/NAME.safetensors and OUT/NAME.json. Tensor names follow the vendor goldens (golden.json), so one test reads
both. --full adds layer outputs, states, greedy runs, chats and tokeniser samples.
"""
import argparse
import hashlib
import json
import math
from pathlib import Path

import bpe
import chat
import checkpoint
import generate
import kda
import prompts
import torch
from data import SOURCES, Data
from model import KDA

WINDOW = 512
WINDOWS = {"kjv": 5, "henry": 2, "spurgeon": 2, "chat": 3}
SEQUENCES = {1: 3, 3: 9, 17: 51, 64: 192, 65: 195, 130: 390, 253: 771}  # length: begin in the kjv test split
SHORT = (1, 3, 17)
STOP = (2050, 2049)
MINIMUM_GAP, MINIMUM_ROUTER_MARGIN = 0.02, 1e-5


def record_sequence(model, tokens, full: bool) -> dict:
    length, out, trace = len(tokens), {}, {}
    logits = model(tokens[None], trace)[0]
    best = logits.topk(2).values
    out[f"tokens.{length}"] = tokens.int()
    kind = "logits" if length <= 17 else "logits_last8"
    out[f"fp32.{kind}.{length}"] = logits if length <= 17 else logits[-8:]
    out[f"fp32.argmax.{length}"] = logits.argmax(-1).int()
    out[f"fp32.logsumexp.{length}"] = logits.logsumexp(-1)
    out[f"fp32.top2_margin.{length}"] = best[:, 0] - best[:, 1]
    out[f"fp32.router_margin.{length}"] = torch.cat(trace["router_margin"])
    if length == 17 and full:
        out["fp32.layer_out.17"] = torch.cat(trace["layer_out"])
    if length == 65:
        index = torch.cat(trace["router_idx"]).sort(-1)
        out["fp32.layer_absmax.65"] = torch.stack([x.abs().max() for x in trace["layer_out"]])
        out["fp32.router_idx.65"] = index.values.int()
        out["fp32.router_weight.65"] = torch.cat(trace["router_weight"]).gather(-1, index.indices)
        if full:
            out["fp32.kda_state.65"] = trace["kda_state"][0][0]
            for name, raw in zip("qkv", trace["conv_inputs"][0]):
                out[f"fp32.conv_state_{name}.65"] = raw[0, -4:].T.contiguous()
    return out


def losses(model, rows) -> torch.Tensor:
    """NLL of positions 1.. of every window, each window from an empty state."""
    logits = torch.cat([model(r[None]) for r in rows])
    return torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), rows[:, 1:], reduction="none")


def perplexities(model, data: Data) -> dict:
    """Of the whole test split, by source, in windows of the same protocol."""
    out = {}
    for source in SOURCES:
        rows = data.validation(source, "test", 48, WINDOW)
        out[source] = round(losses(model, rows).double().mean().exp().item(), 4)
    return out


def double_check(model, folder: Path, sequences: list) -> dict:
    """The same weights in float64, token by token, against the float32 chunk form."""
    exact = checkpoint.load(folder).to(sequences[0].device).double()
    KDA.core = staticmethod(kda.kda_recurrent)
    wanted = [exact(s[None]) for s in sequences]
    KDA.core = staticmethod(kda.kda_chunk)
    got = [model(s[None]) for s in sequences]
    return {"logits_max_abs_diff": max((g - w).abs().max().item() for g, w in zip(got, wanted)),
            "argmax_equal": all(torch.equal(g.argmax(-1), w.argmax(-1)) for g, w in zip(got, wanted))}


def greedy_runs(model, encoding) -> list[dict]:
    """The ten texts with the widest smallest gap of logits among those without a near-tie in the router."""
    out = []
    ids = [encoding.encode_ordinary(t) for t in prompts.TEXTS]
    for text, prompt, run in zip(prompts.TEXTS, ids, generate.greedy(model, ids, 64)):
        trace: dict = {}
        model(torch.tensor([prompt + run["tokens"]], device=model.lm_head.weight.device), trace)
        out.append({"prompt": text, "prompt_ids": prompt, "tokens": run["tokens"], "text": encoding.decode(run["tokens"]),
                    "min_top2_margin": run["min_gap"], "min_router_margin": torch.cat(trace["router_margin"]).min().item()})
    clear = [r for r in out if r["min_router_margin"] >= MINIMUM_ROUTER_MARGIN]
    chosen = sorted(clear, key=lambda r: -r["min_top2_margin"])[:10]
    if len(chosen) < 10 or chosen[-1]["min_top2_margin"] < MINIMUM_GAP:
        print("WARNING: some greedy run has a narrow margin")
    return [r for r in out if r in chosen]


def chat_runs(model, encoding) -> list[dict]:
    ids = [bpe.encode_segments(encoding, chat.encode(m, prompt=True, **o)) for m, o in prompts.CHATS]
    runs = generate.greedy(model, ids, 160, STOP)
    return [{"messages": m, "options": o, "prompt_ids": p, "answer_ids": r["tokens"], "answer": encoding.decode(r["tokens"]),
             "stopped": r["tokens"][-1] in STOP, "min_top2_margin": r["min_gap"]}
            for (m, o), p, r in zip(prompts.CHATS, ids, runs)]


@torch.no_grad()
def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("tokens", type=Path)
    p.add_argument("model", type=Path)
    p.add_argument("out", type=Path)
    p.add_argument("name")
    p.add_argument("--full", action="store_true")
    args = p.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    data, encoding, model = Data(args.tokens, device), bpe.load(args.model), checkpoint.load(args.model).to(device)

    held_out = torch.cat([data.validation(s, "test", n, WINDOW) for s, n in WINDOWS.items()])
    nll = losses(model, held_out)
    tensors = {"heldout.tokens": held_out.int(), "heldout.nll": nll}
    text = torch.from_numpy(data.arrays["kjv_test"][:1024].astype("int64")).to(device)
    sequences = [text[begin:begin + n] for n, begin in SEQUENCES.items() if args.full or n in SHORT]
    for s in sequences:
        tensors |= record_sequence(model, s, args.full)
    total = nll.double().sum().item()
    report = {
        "model": args.model.name,
        "files_sha256": {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(args.model.glob("*"))
                         if f.name != "README.md"},
        "perplexity": {"protocol": f"heldout.tokens: windows of {WINDOW} tokens, each from an empty state, positions "
                                   f"1..{WINDOW - 1} scored; float32", "windows": WINDOWS, "scored": nll.numel(),
                       "total_nll": total, "perplexity": math.exp(total / nll.numel()),
                       "test_split_by_source_48_windows_each": perplexities(model, data)},
        "float64_recurrence": double_check(model, args.model, sequences[:7] + [held_out[0]]),
        "versions": {"torch": torch.__version__, "gpu": torch.cuda.get_device_name() if device == "cuda" else "none"},
    }
    if args.full:
        run = generate.greedy(model, [sequences[2].tolist()], 24)[0]
        tensors |= {"fp32.greedy_nocache": torch.tensor(run["tokens"]).int(),
                    "fp32.greedy_margin": torch.tensor(run["gaps"]), "fp32.greedy_logits": torch.stack(run["logits"])}
        report["greedy"], report["chats"] = greedy_runs(model, encoding), chat_runs(model, encoding)
        report["tokenizer"] = [{"text": t, "ids": encoding.encode_ordinary(t)} for t in prompts.TOKENIZER_TEXTS]
        starts = [encoding.encode_ordinary(t) for t in prompts.TEXTS[:4]]
        texts = generate.sample(model, starts, 150, seed=3, stop=STOP)
        report["samples_temperature_1_top_p_0.95"] = [encoding.decode(a + b) for a, b in zip(starts, texts)]
    report["tensors"] = {k: f"{str(v.dtype)[6:]} {list(v.shape)}" for k, v in tensors.items()}
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint.write_tensors(args.out / f"{args.name}.safetensors", tensors)
    (args.out / f"{args.name}.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
