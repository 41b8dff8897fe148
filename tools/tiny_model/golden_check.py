"""This model against outputs of the vendor's own code: python golden_check.py ../../tests/golden/k3_a

Every recorded fp32 logit, layer output, expert choice and the KDA state, with the chunk form and the recurrence.
"""
import json
import sys
from pathlib import Path

import checkpoint
import kda
import torch
from model import KDA

BOUND = 1e-3


@torch.no_grad()
def check(folder: Path, device: str = "cpu") -> dict:
    golden = {k: v.to(device) for k, v in checkpoint.read_tensors(folder / "golden.safetensors").items()}
    model = checkpoint.load(folder).to(device)
    worst: dict[str, float] = {}

    def compare(label: str, got, want) -> None:
        worst[label] = max(worst.get(label, 0.0), (got - want).abs().max().item())

    for form, core in (("chunk", kda.kda_chunk), ("recurrent", kda.kda_recurrent)):
        KDA.core = staticmethod(core)
        for length in (1, 3, 17, 64, 65, 130, 257):
            trace: dict = {}
            logits = model(golden[f"tokens.{length}"].long()[None], trace)[0]
            name = f"fp32.logits.{length}" if length <= 17 else f"fp32.logits_last8.{length}"
            compare(f"{form} logits", logits[-golden[name].shape[0]:], golden[name])
            compare(f"{form} logsumexp", logits.logsumexp(-1), golden[f"fp32.logsumexp.{length}"])
            if not torch.equal(logits.argmax(-1).int(), golden[f"fp32.argmax.{length}"]):
                raise SystemExit(f"argmax differs at length {length}")
            if length == 17:
                compare(f"{form} layer outputs", torch.cat(trace["layer_out"]), golden["fp32.layer_out.17"])
            if length == 65:
                index = torch.cat(trace["router_idx"]).sort(-1)
                if not torch.equal(index.values.int(), golden["fp32.router_idx.65"]):
                    raise SystemExit("expert choice differs")
                weights = torch.cat(trace["router_weight"]).gather(-1, index.indices)
                compare(f"{form} router weights", weights, golden["fp32.router_weight.65"])
                compare(f"{form} KDA state", trace["kda_state"][0][0], golden["fp32.kda_state.65"])
    KDA.core = staticmethod(kda.kda_chunk)
    if max(worst.values()) > BOUND:
        raise SystemExit(f"beyond {BOUND}: {worst}")
    return worst


if __name__ == "__main__":
    device = sys.argv[2] if len(sys.argv) > 2 else "cpu"
    print(json.dumps(check(Path(sys.argv[1]), device), indent=1))
