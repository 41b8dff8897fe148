"""Synthetic chats from dictionary entries and verses: what the tiny model knows of users, thinking and tools."""
import random
import re

TOOLS = {
    "define": {"type": "function", "function": {
        "name": "define", "description": "Give the meaning of an English word.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}}},
    "read": {"type": "function", "function": {
        "name": "read", "description": "Read one verse of the Bible.",
        "parameters": {"type": "object", "properties": {
            "book": {"type": "string"}, "chapter": {"type": "number"}, "verse": {"type": "number"}},
            "required": ["book", "chapter", "verse"]}}},
}
DEFINE = ["What is the meaning of {w}?", "What does {w} mean?", "What does the word {w} mean?", "Define {w}.",
          "Define the word {w}.", "What is {w}?", "Please explain the word {w}.", "Tell me what {w} means.",
          "I do not know the word {w}. What does it mean?", "What doth {w} mean?"]
COMPARE = ["What are the meanings of {a} and {b}?", "Define {a} and {b}.", "What is the difference between {a} and {b}?"]
READ = ["Read me {r}.", "What is written in {r}?", "Please read {r}.", "What does {r} say?", "Open the book at {r}."]
TOPIC = ["Speak to me of {w}.", "Tell me about {w}.", "Give me a verse about {w}.", "What does the Bible say about {w}?"]
BOOK = ["Give me a verse from {b}.", "Read me something from {b}.", "Tell me something from the book of {b}."]
CONTINUE = ["Continue: {t}", "Go on: {t}", "How does this go on? {t}"]
HELLO = ["Hello", "Hello!", "Good morning.", "Hi", "Good evening.", "Peace be unto you.", "Hello, who are you?",
         "Who are you?", "What can you do?"]
HELLO_REPLY = ["Peace be unto you. Ask me the meaning of a word, or a verse of the Bible.",
               "Hello! I am a small model. I explain words and recite verses.",
               "Good day. Give me a word and I shall tell you its meaning."]
THANKS = ["Thank you.", "Thanks!", "I thank you.", "That is all."]
THANKS_REPLY = ["You are welcome.", "You are welcome. Go in peace.", "Gladly. Peace be with you."]
SYSTEM = ["You are a helpful assistant.", "You are a helpful assistant. Answer briefly.", "Thou art a faithful servant."]


def an(part: str) -> str:
    return f"an {part}" if part[0] in "aeiou" else f"a {part}"


class Writer:
    """Writes chats; each turn kind returns a list of messages."""

    def __init__(self, entries, verses, seed: int):
        self.entries, self.verses = entries, verses
        self.short = [v for v in verses if 40 <= len(v.text) <= 220 and v.text[-1] in ".?!"]
        self.by_book: dict[str, list] = {}
        for v in self.short:
            self.by_book.setdefault(v.book, []).append(v)
        self.topics = self.find_topics()
        self.rng = random.Random(seed)

    def find_topics(self) -> dict[str, list]:
        """Nouns with several verses of their own, for "tell me about ...". """
        nouns = {e.word for e in self.entries if e.part == "noun" and len(e.word) >= 4}
        topics: dict[str, list] = {}
        for v in self.short:
            for word in sorted(set(re.findall(r"[a-z]+", v.text)) & nouns):
                topics.setdefault(word, []).append(v)
        return {w: vs for w, vs in topics.items() if 3 <= len(vs) <= 500}

    def say(self, options, **values) -> str:
        return self.rng.choice(options).format(**values)

    def meaning(self, e) -> str:
        return self.say(["The word {w} is {p}. It means: {g}.", "{W} is {p}: {g}.", "{W} means: {g}."],
                        w=e.word, W=e.word.capitalize(), p=an(e.part), g=e.gloss)

    def define(self, tools) -> list:
        e = self.rng.choice(self.entries)
        quoted = self.rng.choice([e.word, e.word, f'"{e.word}"', e.word.capitalize()])
        user = {"role": "user", "content": self.say(DEFINE, w=quoted)}
        if "define" not in tools:
            return [user, {"role": "assistant", "content": self.meaning(e),
                           "think": f"The user asks for the meaning of {e.word}. It is {an(e.part)}."}]
        return [user,
                {"role": "assistant", "content": "", "calls": [("define", {"word": e.word})],
                 "think": f"The user asks for the meaning of {e.word}. I look it up."},
                {"role": "tool", "name": "define", "index": 1, "content": f"{e.word} ({e.part}): {e.gloss}"},
                {"role": "assistant", "content": self.meaning(e), "think": "The dictionary gave me the meaning."}]

    def compare(self, tools) -> list:
        a, b = self.rng.sample(self.entries, 2)
        user = {"role": "user", "content": self.say(COMPARE, a=a.word, b=b.word)}
        think = f"The user asks for two words, {a.word} and {b.word}."
        answer = {"role": "assistant", "content": f"{self.meaning(a)}\n{self.meaning(b)}"}
        if "define" not in tools:
            return [user, {**answer, "think": f"{think} The first is {an(a.part)}, the second {an(b.part)}."}]
        results = [{"role": "tool", "name": "define", "index": i, "content": f"{e.word} ({e.part}): {e.gloss}"}
                   for i, e in enumerate((a, b), 1)]
        return [user, {"role": "assistant", "content": "", "think": f"{think} I look up both.",
                       "calls": [("define", {"word": a.word}), ("define", {"word": b.word})]},
                *results, {**answer, "think": "The dictionary gave me both meanings."}]

    def read(self, tools) -> list:
        v = self.rng.choice(self.short)
        ref = f"{v.book} {v.chapter}:{v.verse}"
        user = {"role": "user", "content": self.say(READ, r=ref)}
        answer = {"role": "assistant", "content": self.say(["{r}: {t}", "It is written: {t}"], r=ref, t=v.text)}
        if "read" not in tools:
            return self.from_book(tools)
        return [user, {"role": "assistant", "content": "", "think": f"The user wants to hear {ref}. I read it.",
                       "calls": [("read", {"book": v.book, "chapter": v.chapter, "verse": v.verse})]},
                {"role": "tool", "name": "read", "index": 1, "content": v.text},
                {**answer, "think": "I have the verse."}]

    def from_book(self, tools) -> list:
        book = self.rng.choice(list(self.by_book))
        v = self.rng.choice(self.by_book[book])
        return [{"role": "user", "content": self.say(BOOK, b=book)},
                {"role": "assistant", "content": v.text, "think": f"The user wants a verse from {book}."}]

    def topic(self, tools) -> list:
        word = self.rng.choice(list(self.topics))
        return [{"role": "user", "content": self.say(TOPIC, w=word)},
                {"role": "assistant", "content": self.rng.choice(self.topics[word]).text,
                 "think": f"The user wants to hear of {word}. I know a verse about it."}]

    def go_on(self, tools) -> list:
        i = self.rng.randrange(len(self.verses) - 3)
        words = self.verses[i].text.split()
        cut = self.rng.randint(min(4, len(words)), min(14, len(words)))
        rest = " ".join([*words[cut:], *(v.text for v in self.verses[i + 1:i + 3])])
        return [{"role": "user", "content": self.say(CONTINUE, t=" ".join(words[:cut]))},
                {"role": "assistant", "content": rest, "think": "The user began a passage. I continue it."}]

    def small_talk(self, asks, replies, think) -> list:
        return [{"role": "user", "content": self.say(asks)},
                {"role": "assistant", "content": self.say(replies), "think": think}]

    def chat(self) -> tuple[list, dict]:
        """Messages and the options of chat.encode."""
        rng = self.rng
        names = rng.choice([[], [], ["define"], ["define", "read"], ["define", "read"], ["read"]])
        messages = [{"role": "system", "content": self.say(SYSTEM)}] if rng.random() < 0.2 else []
        if rng.random() < 0.12:
            messages += self.small_talk(HELLO, HELLO_REPLY, "The user greets me.")
        kinds, weights = [self.define, self.compare, self.read, self.from_book, self.topic, self.go_on], [8, 2, 4, 1, 3, 3]
        for _ in range(rng.choice([1, 1, 1, 2, 2, 3])):
            messages += rng.choices(kinds, weights)[0](names)
        if rng.random() < 0.1:
            messages += self.small_talk(THANKS, THANKS_REPLY, "The user thanks me.")
        thinking = rng.random() < 0.6
        effort = rng.choice(["low", "medium", "high", "max"]) if thinking and rng.random() < 0.25 else ""
        return messages, {"thinking": thinking, "tools": [TOOLS[n] for n in names], "effort": effort}
