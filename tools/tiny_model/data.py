"""Training rows and validation rows from tokens.npz, kept on the GPU as one array."""
from pathlib import Path

import numpy as np
import torch

SOURCES = {"chat": 0.25, "kjv": 0.25, "henry": 0.15, "spurgeon": 0.35}  # share of the rows


class Data:
    def __init__(self, path: Path, device: str):
        self.arrays = dict(np.load(path))
        self.begin, parts, position = {}, [], 0
        for name, a in self.arrays.items():
            if not name.endswith("starts"):
                self.begin[name] = position
                parts.append(a.astype(np.int16))
                position += len(a)
        self.tokens = torch.from_numpy(np.concatenate(parts)).to(device)
        self.device = device

    def offsets(self, rng: np.random.Generator, rows: int, length: int) -> torch.Tensor:
        """Where training rows begin: anywhere in prose, at the first token of a chat in chats."""
        names = rng.choice(list(SOURCES), size=rows, p=list(SOURCES.values()))
        out = np.empty(rows, np.int64)
        for source in SOURCES:
            mine = names == source
            limit = len(self.arrays[f"{source}_train"]) - length - 1
            if source == "chat":
                starts = self.arrays["chat_train_starts"]
                picked = rng.choice(starts[starts < limit], mine.sum())
            else:
                picked = rng.integers(0, limit, mine.sum())
            out[mine] = picked + self.begin[f"{source}_train"]
        return torch.from_numpy(out).to(self.device)

    def validation(self, source: str, split: str, rows: int, length: int) -> torch.Tensor:
        """[rows, length] evenly spaced windows of a held-out array; in chats each begins with a chat."""
        a = self.arrays[f"{source}_{split}"]
        begins = np.linspace(0, len(a) - length - 1, rows).astype(int)
        if source == "chat":
            starts = self.arrays[f"chat_{split}_starts"]
            begins = starts[np.searchsorted(starts, begins, "right") - 1]
        return torch.from_numpy(np.stack([a[b:b + length] for b in begins]).astype(np.int64)).to(self.device)
