"""Dictionary entries for the chat part: WordNet 3.0 (Debian package wordnet-base), only words the prose uses.

One gloss a word, of its most frequent sense, cut at the first clause: short enough to be copied by a small model.
"""
import re
from collections import Counter
from typing import NamedTuple

WORDNET = "/usr/share/wordnet"
PARTS = {"noun": "noun", "verb": "verb", "adj": "adjective", "adv": "adverb"}


class Entry(NamedTuple):
    word: str
    part: str
    gloss: str


def load_glosses(part: str) -> dict[str, str]:
    glosses = {}
    with open(f"{WORDNET}/data.{part}", encoding="utf-8", errors="replace") as f:
        for line in f:
            if not line.startswith("  "):
                offset, _, rest = line.partition(" ")
                glosses[offset] = rest.partition("|")[2].strip()
    return glosses


def tag_counts() -> dict[tuple[str, str], int]:
    """How often WordNet's own tagged corpus uses a word as this part of speech: picks the part for `light`, `fast`."""
    counts: Counter = Counter()
    kinds = {"1": "noun", "2": "verb", "3": "adj", "5": "adj", "4": "adv"}
    with open(f"{WORDNET}/cntlist.rev", encoding="utf-8", errors="replace") as f:
        for line in f:
            key, _, count = line.split()
            word, _, sense = key.partition("%")
            counts[word, kinds[sense[0]]] += int(count)
    return counts


def shorten(gloss: str) -> str:
    gloss = re.split(r"; |\"", gloss)[0]
    return re.sub(r"\s+", " ", re.sub(r"\([^)]*\)", "", gloss)).strip(" ;,:")


def entries(prose_counts: Counter) -> list[Entry]:
    """At most one entry a word, sorted by word. `prose_counts` maps lower-case words of the prose to their counts."""
    tags, best = tag_counts(), {}
    for part in PARTS:
        glosses = load_glosses(part)
        with open(f"{WORDNET}/index.{part}", encoding="utf-8", errors="replace") as f:
            for line in f:
                if line.startswith("  "):
                    continue
                fields = line.split()
                word = fields[0]
                if not re.fullmatch(r"[a-z]{3,14}", word) or prose_counts[word] < 4:
                    continue
                offset = next(x for x in fields[4:] if re.fullmatch(r"\d{8}", x))
                gloss = shorten(glosses[offset])
                if 12 <= len(gloss) <= 90 and gloss.isascii() and word not in gloss.split():
                    score = tags[word, part]
                    if word not in best or score > best[word][0]:
                        best[word] = (score, Entry(word, PARTS[part], gloss))
    return [best[w][1] for w in sorted(best)]
