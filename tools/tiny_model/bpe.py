"""Byte-pair encoding in Kimi's file layout: training, tiktoken.model and tokenizer_config.json.

Ranks 0..255 are the single bytes in the order of the GPT-2 family (printable ones first), which is Kimi's order too:
its "." is id 13. The specials follow the last rank at the offsets of the release.
"""
import base64
import heapq
import json
from collections import Counter, defaultdict
from pathlib import Path

import regex

UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join([
    r"[\p{Han}]+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SUFFIX}",
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SUFFIX}",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])
SPECIAL_COUNT = 256
NAMED_SPECIALS = {
    0: "[BOS]", 1: "[EOS]", 2: "<|end_of_msg|>", 3: "<|open|>", 4: "<|close|>", 5: "<|sep|>",
    6: "[start_header_id]", 7: "[end_header_id]", 9: "[EOT]",
    18: "<|media_begin|>", 19: "<|media_content|>", 20: "<|media_end|>", 21: "<|media_pad|>",
    22: "<think>", 23: "</think>", 65: "<osagent_mode>", 254: "[UNK]", 255: "[PAD]",
}


def byte_order() -> list[int]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return printable + [b for b in range(256) if b not in set(printable)]


def count_pieces(text: str, counts: Counter, weight: int = 1) -> None:
    for piece in regex.findall(PATTERN, text, flags=regex.V1):
        counts[piece] += weight


def train(counts: Counter, size: int) -> list[bytes]:
    """Tokens by rank. The most frequent pair wins; ties go to the pair of lowest ranks, so a run is reproducible."""
    tokens = [bytes([b]) for b in byte_order()]
    rank = {t: i for i, t in enumerate(tokens)}
    words = [([rank[bytes([b])] for b in piece.encode()], n) for piece, n in sorted(counts.items())]
    pairs: Counter = Counter()
    where = defaultdict(set)
    for i, (word, n) in enumerate(words):
        for pair in zip(word, word[1:]):
            pairs[pair] += n
            where[pair].add(i)
    heap = [(-n, pair) for pair, n in pairs.items()]
    heapq.heapify(heap)
    while len(tokens) < size:
        n, best = heapq.heappop(heap)
        if -n != pairs[best]:  # the count changed since this entry was pushed
            if pairs[best] > 0:
                heapq.heappush(heap, (-pairs[best], best))
            continue
        new = len(tokens)
        tokens.append(tokens[best[0]] + tokens[best[1]])
        changed = set()
        for i in where.pop(best):
            word, n = words[i]
            for pair in zip(word, word[1:]):
                pairs[pair] -= n
            merged, j = [], 0
            while j < len(word):
                if j + 1 < len(word) and (word[j], word[j + 1]) == best:
                    merged.append(new)
                    j += 2
                else:
                    merged.append(word[j])
                    j += 1
            words[i] = (merged, n)
            for pair in zip(merged, merged[1:]):
                pairs[pair] += n
                where[pair].add(i)
                changed.add(pair)
        for pair in changed:
            heapq.heappush(heap, (-pairs[pair], pair))
    if len(set(tokens)) != len(tokens):
        raise SystemExit("two merges gave the same token")
    return tokens


def specials(base: int) -> dict[str, int]:
    return {NAMED_SPECIALS.get(i, f"<|reserved_token_{base + i}|>"): base + i for i in range(SPECIAL_COUNT)}


def write(folder: Path, tokens: list[bytes]) -> None:
    lines = [f"{base64.b64encode(t).decode()} {i}\n" for i, t in enumerate(tokens)]
    (folder / "tiktoken.model").write_text("".join(lines))
    base = len(tokens)
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    config = {
        "added_tokens_decoder": {str(base + i): {"content": name, **flags} for i, name in NAMED_SPECIALS.items()},
        "additional_special_tokens": [NAMED_SPECIALS[i] for i in (2, 3, 4, 5)],
        "bos_token": "[BOS]", "clean_up_tokenization_spaces": False, "eos_token": "[EOS]",
        "extra_special_tokens": {}, "model_max_length": 1048576, "pad_token": "[PAD]",
        "tokenizer_class": "TikTokenTokenizer", "unk_token": "[UNK]",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def load(folder: Path):
    """The tokenizer as PyPI tiktoken reads it from the files."""
    import tiktoken
    ranks = {}
    for line in (folder / "tiktoken.model").read_text().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    return tiktoken.Encoding("tiny-k3", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=specials(len(ranks)))


def encode_segments(encoding, segments: list) -> list[int]:
    ids = []
    for kind, piece in segments:
        if kind == "special":
            ids.append(encoding._special_tokens[piece])
        else:
            ids += encoding.encode_ordinary(piece)
    return ids
