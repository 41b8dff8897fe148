"""Trains tiny-k3 and its draft in one time-boxed run and writes both checkpoints.

    python train.py TOKENS.npz MODELS OUT --fuse

The learning rate follows the elapsed fraction of the time box, so a slower machine trains less but still finishes.
The step (sampling, forward, backward, clipping, AdamW, router balancing) is one CUDA graph.
"""
import argparse
import csv
import time
from pathlib import Path

import checkpoint
import kda
import model as model_file
import numpy as np
import torch
import torch.nn.functional as F
from data import SOURCES, Data
from model import KDA, Config, LatentMoE, Model

LENGTH, ROWS = 1024, 16
WARMUP_STEPS, WEIGHT_DECAY, BALANCE_RATE = 200, 0.1, 2e-3
RECIPES = {"tiny-k3": dict(peak=2e-3, dropout=0.1, seed=1), "tiny-k3-draft": dict(peak=4e-3, dropout=0.0, seed=2)}


@torch.no_grad()
def initialise(model: Model, seed: int) -> None:
    torch.manual_seed(seed)
    for name, p in model.named_parameters():
        fan_in = p.shape[-1]
        if "res_proj" in name or "correction_bias" in name:
            p.zero_()  # an even mixture of the blocks, an unbiased router
        elif "conv1d" in name:
            p.uniform_(-0.5, 0.5)
        elif "embed" in name:
            p.normal_(std=0.5)
        elif p.dim() > 1:
            output = any(s in name for s in ("o_proj", "down_proj", "up_proj", "lm_head"))
            p.normal_(std=(0.5 if output else 0.8) * fan_in**-0.5)
    for module in model.modules():
        if isinstance(module, KDA):
            # Log decays per token from 0.002 to 1, so that some channels forget in a word and some keep a page.
            rate = torch.linspace(1.0, 2.0, module.heads)
            g = torch.exp(torch.empty(module.heads, module.dim).uniform_(np.log(0.002), 0.0))
            module.A_log.copy_(rate.log())
            module.dt_bias.copy_((torch.logit(g / -module.lower_bound) / rate[:, None]).flatten())


def fuse_pointwise() -> None:
    torch._dynamo.config.recompile_limit = 64  # one version per shape, number of blocks and gradient mode
    for module, names in ((model_file, ("rms_norm", "residual_mix", "situ", "weighted_situ", "output_gate",
                                        "causal_probabilities", "kda_inputs", "fake_quantise")), (kda, ("chunk_terms",))):
        for name in names:
            setattr(module, name, torch.compile(getattr(module, name), dynamic=False))


@torch.no_grad()
def inexact_experts(model: Model, folder: Path) -> list[str]:
    """Expert weights of the files that are not, bit for bit, those of the training: there must be none."""
    exported = dict(checkpoint.load(folder).cuda().named_parameters())
    return [name for name, p in model.named_parameters()
            if ".experts.w" in name and not torch.equal(model_file.fake_quantise(p), exported[name])]


class Trainer:
    def __init__(self, model: Model, data: Data, recipe: dict, teacher: Model | None):
        self.model, self.data, self.teacher, self.recipe = model, data, teacher, recipe
        self.rng = np.random.default_rng(recipe["seed"])
        self.lr = torch.tensor(0.0, device=data.device)
        self.loss = torch.zeros((), device=data.device)
        self.offsets = data.offsets(self.rng, ROWS, LENGTH)
        self.span = torch.arange(LENGTH + 1, device=data.device)
        self.gates = [m for m in model.modules() if isinstance(m, LatentMoE)]
        trained = [p for p in model.parameters() if p.requires_grad]
        matrices = [p for p in trained if p.dim() > 1 and p.shape[-1] > 4 and p.shape[0] > 1]
        ids = {id(p) for p in matrices} - {id(model.model.embed_tokens.weight)}
        groups = [{"params": [p for p in trained if (id(p) in ids) == decay], "weight_decay": WEIGHT_DECAY * decay}
                  for decay in (True, False)]
        self.trained = trained
        self.optimizer = torch.optim.AdamW(groups, lr=self.lr, betas=(0.9, 0.98), fused=True, capturable=True)

    def step(self) -> None:
        rows = self.data.tokens[self.offsets[:, None] + self.span].long()
        inputs, targets = rows[:, :-1], rows[:, 1:].flatten()
        logits = self.model(inputs).flatten(0, 1).float()
        loss = F.cross_entropy(logits, targets)
        self.loss.copy_(loss.detach())
        if self.teacher is not None:
            with torch.no_grad():
                wanted = self.teacher(inputs).flatten(0, 1).float().log_softmax(-1)
            loss = 0.3 * loss + 0.7 * F.kl_div(logits.log_softmax(-1), wanted, log_target=True, reduction="batchmean")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0, foreach=True)
        self.optimizer.step()
        with torch.no_grad():
            for moe in self.gates:  # balancing without an auxiliary loss: nudge the choice bias towards even load
                push = torch.sign(moe.load.mean() - moe.load) * self.lr * (BALANCE_RATE / self.recipe["peak"])
                moe.gate.e_score_correction_bias.add_(push)

    def capture(self) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.optimizer.zero_grad(set_to_none=True)
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        self.model.eval()
        out = {}
        for source in SOURCES:
            rows = self.data.validation(source, "valid", 16, LENGTH)
            out[source] = F.cross_entropy(self.model(rows)[:, :-1].flatten(0, 1).float(), rows[:, 1:].flatten()).item()
        self.model.train()
        return out

    def run(self, seconds: float, curve: Path) -> None:
        start = time.time()
        self.model.train()
        graph = self.capture()
        self.validate()  # compiles its own versions
        start, seconds = time.time(), seconds - (time.time() - start)
        print(f"training for {seconds:.1f} s", flush=True)
        step, next_look, best, best_state = 0, 0.0, float("inf"), None
        with open(curve, "w", newline="") as f:
            log = csv.writer(f, lineterminator="\n")
            log.writerow(["step", "tokens", "seconds", "lr", "train_loss", *(f"valid_{s}" for s in SOURCES)])
            while True:
                fraction = min(1.0, (time.time() - start) / seconds)
                if step % 25 == 0 and (fraction >= next_look or fraction >= 1.0):
                    next_look = fraction + 0.04
                    losses = self.validate()
                    mean = sum(losses[s] * share for s, share in SOURCES.items())
                    if mean < best:
                        best, best_state = mean, {k: v.clone() for k, v in self.model.state_dict().items()}
                    row = [step, step * ROWS * LENGTH, round(time.time() - start, 1), round(self.lr.item(), 6),
                           round(self.loss.item(), 4), *(round(x, 4) for x in losses.values())]
                    log.writerow(row)
                    print(*row, flush=True)
                    if fraction >= 1.0:
                        break
                self.lr.fill_(self.recipe["peak"] * min(1.0, step / WARMUP_STEPS) * max(0.0, 1.0 - fraction))
                self.offsets.copy_(self.data.offsets(self.rng, ROWS, LENGTH))
                graph.replay()
                if step % 25 == 24:
                    torch.cuda.synchronize()
                step += 1
        self.model.load_state_dict(best_state)


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("tokens", type=Path)
    p.add_argument("models", type=Path, help="holds a folder with config.json for each model")
    p.add_argument("out", type=Path, help="gets the loss curves")
    p.add_argument("--target-seconds", type=float, default=350)
    p.add_argument("--draft-seconds", type=float, default=105)
    p.add_argument("--fuse", action="store_true", help="compile the pointwise functions: a slower start, faster steps")
    args = p.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    data = Data(args.tokens, "cuda")
    LatentMoE.quantise, Model.product_type = True, torch.bfloat16
    if args.fuse:
        fuse_pointwise()
    teacher, inexact = None, []
    for name, seconds in (("tiny-k3", args.target_seconds), ("tiny-k3-draft", args.draft_seconds)):
        recipe = RECIPES[name]
        model = Model(Config(args.models / name), recipe["dropout"])
        initialise(model, recipe["seed"])
        model.cuda()
        Trainer(model, data, recipe, teacher).run(seconds, args.out / f"loss_{name}.csv")
        checkpoint.export(model, args.models / name)
        inexact += inexact_experts(model, args.models / name)
        teacher = model.eval()
    if inexact:
        raise SystemExit(f"not exported exactly: {inexact}")


if __name__ == "__main__":
    main()
