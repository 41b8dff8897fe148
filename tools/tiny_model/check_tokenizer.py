"""PyPI tiktoken against the plain algorithm of the format description, on awkward and random strings.

    python check_tokenizer.py ../../models/tiny-k3
"""
import random
import sys
from pathlib import Path

import bpe
import prompts
import regex


def encode_plain(ranks: dict[bytes, int], text: str) -> list[int]:
    ids = []
    for piece in regex.findall(bpe.PATTERN, text, flags=regex.V1):
        data = piece.encode()
        parts = [data] if data in ranks else [data[i:i + 1] for i in range(len(data))]
        while len(parts) > 1:
            merged = [ranks.get(a + b, len(ranks)) for a, b in zip(parts, parts[1:])]
            best = min(merged)
            if best == len(ranks):
                break
            i = merged.index(best)
            parts[i:i + 2] = [parts[i] + parts[i + 1]]
        ids += [ranks[p] for p in parts]
    return ids


def random_text(rng: random.Random) -> str:
    alphabets = ["abcdefghij THE'sdl", "  \n\r\t\u00a0\u3000", "0123456789", "éÉǅʰªßÀ\u0301\u0308", "神愛世人漢字",
                 "!?.,;:-\"'<|>&/\\", "אבגабвγδ", "👍🏽🇩🇪\u200d"]
    return "".join(rng.choice(rng.choice(alphabets)) for _ in range(rng.randint(0, 60)))


def main() -> None:
    encoding = bpe.load(Path(sys.argv[1]))
    rng = random.Random(0)
    texts = [*prompts.TOKENIZER_TEXTS, *prompts.TEXTS, *(random_text(rng) for _ in range(20000))]
    for text in texts:
        want = encoding.encode_ordinary(text)
        if encode_plain(encoding._mergeable_ranks, text) != want or encoding.decode(want) != text:
            raise SystemExit(f"differs: {text!r}")
    print(f"{len(texts)} strings agree")


if __name__ == "__main__":
    main()
