"""Corpus, tokenizer and token arrays: everything training needs, in one folder that is never committed.

    python prepare.py BUILD MODEL...     e.g. prepare.py build ../../models/tiny-k3 ../../models/tiny-k3-draft

Writes BUILD/tokens.npz and, into each MODEL, tiktoken.model and tokenizer_config.json; prints the manifest, which is
committed as corpus.json. Needs the Debian packages of README.md and PyPI tiktoken, regex and numpy.
"""
import hashlib
import json
import re
import sys
from collections import Counter
from pathlib import Path

import bpe
import chat
import chat_data
import corpus
import glosses
import numpy as np

BASE = 2048  # ranks; the 256 specials follow
EOS = BASE + 1
CHATS = {"train": 26000, "valid": 400, "test": 400}
PIECE_WEIGHT = {"kjv": 2, "henry": 1, "spurgeon": 1}


def gather() -> tuple[dict, dict]:
    """Prose documents by (source, split) and rendered chats by split."""
    verses = corpus.kjv_verses()
    prose: dict[tuple[str, str], list[str]] = {}
    for d in corpus.documents(verses):
        prose.setdefault((d.source, corpus.split_of(d.title)), []).append(d.text)
    words = Counter(w for (_, split), texts in prose.items() if split == "train"
                    for t in texts for w in re.findall(r"[a-z]+", t.lower()))
    entries = glosses.entries(words)
    chats = {}
    for seed, (split, count) in enumerate(CHATS.items()):
        # Held-out chats use words and verses that no training chat and no training prose document holds.
        held = split != "train"
        writer = chat_data.Writer([e for e in entries if (corpus.split_of(e.word) != "train") == held],
                                  [v for v in verses if (corpus.split_of(f"{v.book} {v.chapter}") != "train") == held],
                                  seed)
        chats[split] = [chat.encode(messages, **options) for messages, options in (writer.chat() for _ in range(count))]
    return prose, chats


def train_tokenizer(prose: dict, chats: list) -> list[bytes]:
    counts: Counter = Counter()
    for (source, split), texts in prose.items():
        if split == "train":
            for text in texts:
                bpe.count_pieces(text, counts, PIECE_WEIGHT[source])
    segments = Counter(piece for c in chats[:8000] for kind, piece in c if kind == "text")
    for piece, n in segments.items():
        bpe.count_pieces(piece, counts, n)
    return bpe.train(counts, BASE)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def main() -> None:
    build, models = Path(sys.argv[1]), [Path(m) for m in sys.argv[2:]]
    prose, chats = gather()
    tokens = train_tokenizer(prose, chats["train"])
    for model in models:
        model.mkdir(parents=True, exist_ok=True)
        bpe.write(model, tokens)
    encoding = bpe.load(models[0])
    arrays, manifest = {}, {"tokenizer_sha256": digest((models[0] / "tiktoken.model").read_bytes())}
    for (source, split), texts in sorted(prose.items()):
        ids = [i for text in texts for i in (*encoding.encode_ordinary(text), EOS)]
        arrays[f"{source}_{split}"] = np.array(ids, dtype=np.uint16)
        manifest[f"{source}_{split}"] = {"characters": sum(map(len, texts)), "tokens": len(ids),
                                         "text_sha256": digest("\0".join(texts).encode())}
    for split, rendered in chats.items():
        encoded = [[*bpe.encode_segments(encoding, c), EOS] for c in rendered]
        ids = np.array([i for c in encoded for i in c], dtype=np.uint16)
        arrays[f"chat_{split}"] = ids
        arrays[f"chat_{split}_starts"] = np.cumsum([0] + [len(c) for c in encoded[:-1]]).astype(np.int32)
        manifest[f"chat_{split}"] = {"chats": len(rendered), "tokens": len(ids), "token_sha256": digest(ids.tobytes())}
    build.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(build / "tokens.npz", **arrays)
    print(json.dumps(manifest, indent=1))


if __name__ == "__main__":
    main()
