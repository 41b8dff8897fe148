#!/usr/bin/env python3
"""Makes tests/tokenizer: a small vocabulary in Kimi's files and the ids that PyPI tiktoken gives for hard texts.

    tools/make_tokenizer_fixture.py OUT TEXT...        (needs: pip install tiktoken regex)

TEXT are plain, gzip or gettext .mo files to train on. The committed fixture was trained on Debian 12's base-files
(common-licenses) and on the translations of coreutils, bash and tar.
"""
import gzip
import json
import random
import struct
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "tiny_model"))
import bpe  # noqa: E402

RANKS = 2000
MAX_CHUNK, MAX_RUN = 400_000, 25_000  # of the vendor's tokenizer, in characters

CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"]
SCRIPTS = """English words, and a Sentence. ǅ ǈ Titlecase ᾈ|Ελληνικά ΑΒΓ αβγ|Русский ТЕКСТ|עברית שָׁלוֹם|العربية مُحَمَّد|हिन्दी नमस्ते|বাংলা
ไทย ภาษา|ລາວ|ភាសាខ្មែរ|မြန်မာ|ქართული ᲥᲐᲠᲗᲣᲚᲘ|Հայերեն|አማርኛ|ᏣᎳᎩ ꭰꭱ|日本語テキスト カタカナ ひらがな|한국어 텍스트|中文文本，标点。「引号」|繁體中文
𠮷野家 𪚥|〇一二三 〡〢〣|々〆〻 ⺀⼀ 𖿢𖿣𖿰|Ⅷ ⅷ ① ½ ² ٣٤٥ १२३ 𝟘𝟙𝟚 1〇2〡3|ʰʱʲ ªº ˈˌ|Å é ñ e\u0301 n\u0303 \u0301\u0302|\u0301ABC \u0301Abc A\u0301BC|ſ ß İ ı K
👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇩🇪🇫🇷 #️⃣ ☃️|∑∫√∞ ≠ ← →|€£¥₹ $100.00|«»„“”‘’ … – —|\u00ad\u200b\u200d\ufeff|\U000e0041\U000f0000|\U0002ebf0中a \U00010d50\U00010d70A \u1c89a\u1c8aB 1\U00010d40|\ufffd\ufffe\uffff""".replace("\n", "|").split("|")
SPACES = [" ", "  ", "   ", "\t", "\n", "\r", "\r\n", "\n\n", " \n", "\n ", " \n ", " \n\n  ", "\t\n\t", "\r\r\n \r", "\u00a0", "\u00a0 ",
          "\u2003\u2003", "\u3000", "\u2028", "\u2029x", "\u0085", "\x0b\x0c", "\x1c\x1d", "  \n  \n  ", "\n   x", "   x", "x   ", "x  \n", "x \n y"]
MIXED = ["CamelCaseWord HTMLParser iPhone XMLHttpRequest ABCdefGHI", "don't DON'T Don'T we'Re they'LL i'D x'", "rock'n'roll 'tis 's", "it’s",
         "12345678 1 12 123 1234 1.5e-10 0x1F 1,000,000", "snake_case __init__ a-b a.b a/b", "!!! ??? ... --- ***", "!\n!\r\n\r\n! \n", "a!b @user #tag $x",
         "if (x) {\n    return y;\n}\n", "\tindent\n\t\tmore", "http://example.org/a?b=c&d=e#f", "<|open|>message role=\"user\"<|sep|>", "<|reserved_token_2008|>",
         "[BOS] [EOS] <think>", "a\u0301'S \u0301's !s", "AÉÉa ÀÀ", "ʰA Aʰ AʰB aʰB", "日a本 日A 1日 日1 日' 日's", "ア'll", "e\u0301\u0301\u0301x", " \u0301", "\n\u0301",
         "A" * 200, "a" * 200, "aA" * 60, " " * 130, "\n" * 130, "ab1" * 50, "é" * 90, "字" * 90, "😀" * 60, "\u0301" * 90, "A\u0301" * 60, "=" * 200, "0" * 200]
ALPHABET = list("aAbBzZ019 .,'!-_\n\r\t") + ["'s", "'LL", "'ſ", "é", "É", "ß", "ǅ", "ʰ", "ª", "字", "々", "〇", "𖿢", "か", "ا", "\u0301", "\u0903", "😀", "\u00a0",
                                                 "\u2028", "²", "Ⅷ", "€", "\u200d", "\x1c", "\x00", "\x7f", "ſ", "K"]


def read(path: str) -> str:
    data = (gzip.open if path.endswith(".gz") else open)(path, "rb").read()
    if path.endswith(".mo"):  # translations only: a table of (length, offset) behind the originals
        count, table = struct.unpack_from("<I4xI", data, 8)
        spans = [struct.unpack_from("<II", data, table + 8 * i) for i in range(count)]
        data = b"\n".join(data[offset:offset + length] for length, offset in spans)
    return data.decode("utf-8", errors="ignore")


def chunks(text: str):
    """The cuts of the vendor's tokenizer: windows of MAX_CHUNK characters, in them runs of space or non-space of at most MAX_RUN."""
    for start in range(0, len(text), MAX_CHUNK):
        window, begin, run = text[start:start + MAX_CHUNK], 0, 0
        for i, c in enumerate(window):
            run = run + 1 if i and c.isspace() == window[i - 1].isspace() else 1
            if run > MAX_RUN:
                yield window[begin:i]
                begin, run = i, 1
        yield window[begin:]


def pair_encoding():
    """All bytes and all pairs of bytes that meet where two characters meet: ids under it show where a text was cut into pieces.
    kdelta/io/test_tokenizer_pairs.h makes the same vocabulary."""
    import tiktoken
    ascii, tail, lead = range(0x80), range(0x80, 0xC0), range(0xC2, 0xF5)
    tokens = [bytes([b]) for b in range(256)]
    for first, second in ((tail, ascii), (ascii, lead), (tail, lead), (ascii, ascii)):
        tokens += [bytes([a, b]) for a in first for b in second]
    ranks = {t: i for i, t in enumerate(tokens)}
    return tiktoken.Encoding("pairs", pat_str=bpe.PATTERN, mergeable_ranks=ranks, special_tokens={})


def encode(encoding, text: str) -> list[int]:
    return [i for chunk in chunks(text) for i in encoding.encode_ordinary(chunk)]


def fnv(ids: list[int]) -> str:
    h = 0xCBF29CE484222325
    for i in ids:
        h = (h ^ i) * 0x100000001B3 % 2**64
    return f"{h:016x}"


def short_texts() -> list[str]:
    texts = SCRIPTS + SPACES + MIXED
    for c in CONTRACTIONS:
        texts.append(" ".join(w + form for w in ("x", "X", "1", "字", "!") for form in (c, c.upper(), c.title(), "'" + c[1:].capitalize() + "e")))
    rng = random.Random(7)
    for _ in range(250):
        texts.append("".join(rng.choice(ALPHABET) for _ in range(rng.randrange(1, 24))))
    return list(dict.fromkeys(texts))


def long_texts() -> list[list[tuple[str, int]]]:
    """Runs around the limits, and texts longer than a window; each is a list of (unit, times)."""
    units = ("Z", " ", "\n", ".", "7", "字", "\u0301", "a1", "a b ", " \n", "é", "\x1c", "ab\x1c")
    runs = [[(unit, times)] for unit in units for times in (24999, 50001)]
    return runs + [[(" Zz", 140_000)], [(" 字z", 140_000)], [("ab ", 129_999), ("Z", 30_001)]]


def main():
    out = Path(sys.argv[1])
    counts = Counter()
    for path in sys.argv[2:]:
        bpe.count_pieces(read(path), counts)
    bpe.write(out, bpe.train(counts, RANKS))
    encoding, pairs = bpe.load(out), pair_encoding()
    cases = {"short": [{"text": t, "ids": encode(encoding, t), "pair_ids": encode(pairs, t)} for t in short_texts()],
             "long": [{"parts": parts, "count": len(ids), "pair_fnv": fnv(ids)} for parts in long_texts()
                      for ids in [encode(pairs, "".join(unit * times for unit, times in parts))]]}
    lines = [json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases["short"]]
    longer = [json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases["long"]]
    (out / "cases.json").write_text('{"short":[\n' + ",\n".join(lines) + '\n],"long":[\n' + ",\n".join(longer) + "\n]}\n")


if __name__ == "__main__":
    main()
