"""Prose of the corpus: three public-domain works from Debian packages, as documents of plain text.

    King James Bible                      bible-kjv, bible-kjv-text     `bible`
    Matthew Henry's Concise Commentary    sword-comm-mhcc               `mod2imp MHCC`
    Spurgeon's Treasury of David          sword-comm-tdavid             `mod2imp TDavid`

A document is a chapter of the Bible or a few pages of a commentary. Whole documents are kept aside for validation and test, chosen by a hash of
their title, so the split does not move when a filter here changes.
"""
import hashlib
import html
import re
import subprocess
from typing import NamedTuple


class Document(NamedTuple):
    source: str  # "kjv", "henry", "spurgeon"
    title: str
    text: str


class Verse(NamedTuple):
    book: str
    chapter: int
    verse: int
    text: str


def split_of(title: str) -> str:
    """train, valid or test (96, 2 and 2 percent)."""
    bucket = int(hashlib.sha256(title.encode()).hexdigest()[:8], 16) % 100
    return "valid" if bucket < 2 else "test" if bucket < 4 else "train"


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True).stdout.decode("utf-8", "replace")


def kjv_verses() -> list[Verse]:
    verses, book, chapter = [], "", 0
    for line in run("bible", "-l", "100000", "gen1:1-rev22:21").splitlines():
        if m := re.fullmatch(r"  ?(\d+) (.*)", line):
            verses.append(Verse(book, chapter, int(m[1]), m[2].strip()))
        elif m := re.fullmatch(r"((?:\d )?[A-Z][A-Za-z ]*) (\d+)", line.strip()):
            book, chapter = m[1], int(m[2])
    if len(verses) != 31102:  # the number of verses of the King James Bible
        raise SystemExit(f"expected 31102 verses from `bible`, got {len(verses)}")
    return verses


def kjv_documents(verses: list[Verse]) -> list[Document]:
    """Verses flow into paragraphs of about 400 characters: prose, not a numbered list."""
    chapters: dict[str, list[str]] = {}
    for v in verses:
        chapters.setdefault(f"{v.book} {v.chapter}", []).append(v.text)
    documents = []
    for title, texts in chapters.items():
        paragraphs, current = [], ""
        for text in texts:
            current = f"{current} {text}" if current else text
            if len(current) > 400 and current[-1] in ".?!":
                paragraphs.append(current)
                current = ""
        if current:
            paragraphs.append(current)
        documents.append(Document("kjv", title, title + "\n\n" + "\n\n".join(paragraphs) + "\n"))
    return documents


TYPOGRAPHY = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "\u00a0": " ", "–": "-", "…": "..."})


def clean_paragraph(markup: str) -> str:
    """One paragraph of a SWORD module without tags, references and verse labels; empty if it is no running prose."""
    text = re.sub(r"<title[^>]*>.*?</title>", " ", markup, flags=re.S)
    text = re.sub(r"[,;]?\s*\(?<reference[^>]*>.*?</reference>\)?", "", text, flags=re.S)
    text = html.unescape(re.sub(r"<[^>]+>", "", text)).translate(TYPOGRAPHY)
    text = re.sub(r"\s*—\s*", " - ", text)
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"^(Verses? [\d, -]+\.?|Whole Psalm\.?|\(.{3,30} clause\)\.?|[\s.:-])+", "", text)
    text = re.sub(r"\s+([,.;:?!])", r"\1", text)
    foreign = sum(not (c.isascii() or c in "æœéèêëàâôûüöäïç£") for c in text)
    if len(text) < 160 or foreign > 0 or text[0].islower():
        return ""
    if sum(c.isdigit() for c in text) > len(text) / 60 or sum(c.isupper() for c in text) > len(text) / 10:
        return ""
    return text


def commentary_documents(source: str, module: str) -> list[Document]:
    """Twelve paragraphs a document: the modules file some whole books under a single verse."""
    paragraphs: dict[str, None] = {}  # in order, without repeats: an entry for several verses is printed once for each
    seen = set()
    for entry in run("mod2imp", module).split("$$$")[1:]:
        body = entry.partition("\n")[2]
        if body not in seen:
            seen.add(body)
            for markup in re.split(r'<div [^>]*type="x-p"/>', body):
                paragraphs[clean_paragraph(markup)] = None
    paragraphs.pop("", None)
    texts = list(paragraphs)
    return [Document(source, f"{source} {i // 12}", "\n\n".join(texts[i:i + 12]) + "\n")
            for i in range(0, len(texts), 12)]


def documents(verses: list[Verse]) -> list[Document]:
    return (kjv_documents(verses) + commentary_documents("henry", "MHCC")
            + commentary_documents("spurgeon", "TDavid"))
