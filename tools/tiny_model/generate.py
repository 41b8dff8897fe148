"""Greedy and sampled continuations by full recomputation: slow, and nothing that could be wrong in a cache."""
import torch


def padded(sequences: list[list[int]]) -> torch.Tensor:
    """Right-padded to a common multiple of 16; the model is causal, so the padding changes nothing before it."""
    length = -(-max(map(len, sequences)) // 16) * 16
    return torch.tensor([s + [0] * (length - len(s)) for s in sequences])


@torch.no_grad()
def greedy(model, prompts: list[list[int]], count: int, stop: tuple = ()) -> list[dict]:
    """Per prompt: tokens (a stop id included), the smallest gap of the two best logits, every step's gap and logits."""
    device = next(model.parameters()).device
    runs = [{"tokens": [], "gaps": [], "logits": []} for _ in prompts]
    for _ in range(count):
        live = [i for i, r in enumerate(runs) if not r["tokens"] or r["tokens"][-1] not in stop]
        if not live:
            break
        sequences = [prompts[i] + runs[i]["tokens"] for i in live]
        logits = model(padded(sequences).to(device))
        for row, i in enumerate(live):
            last = logits[row, len(sequences[row]) - 1]
            best = last.topk(2)
            runs[i]["tokens"].append(best.indices[0].item())
            runs[i]["gaps"].append((best.values[0] - best.values[1]).item())
            runs[i]["logits"].append(last.cpu())
    for r in runs:
        r["min_gap"] = min(r["gaps"])
    return runs


@torch.no_grad()
def sample(model, prompts: list[list[int]], count: int, seed: int, top_p: float = 0.95, stop: tuple = ()) -> list[list[int]]:
    """Temperature 1, nucleus `top_p`; a sequence goes on after a stop id only to be cut there by the caller."""
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    out: list[list[int]] = [[] for _ in prompts]
    for _ in range(count):
        sequences = [p + o for p, o in zip(prompts, out)]
        logits = model(padded(sequences).to(device))
        last = torch.stack([logits[i, len(s) - 1] for i, s in enumerate(sequences)])
        p, index = last.softmax(-1).sort(-1, descending=True)
        p[(p.cumsum(-1) - p) > top_p] = 0
        chosen = index.gather(-1, torch.multinomial(p, 1, generator=generator)).squeeze(-1).tolist()
        for o, c in zip(out, chosen):
            o.append(c)
    return [o[:next((i for i, t in enumerate(o) if t in stop), len(o))] for o in out]
