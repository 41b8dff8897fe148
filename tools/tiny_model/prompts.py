"""Prompts of the reference file: text to continue, chats to answer, strings to tokenise."""
from chat_data import TOOLS

TEXTS = [
    "In the beginning", "And it came to pass", "And God said", "The LORD is my shepherd", "Blessed is the man",
    "And David said unto Saul,", "Now in the days of the king", "The fear of the LORD", "And Jesus answered",
    "Verily, verily, I say unto you,", "And Moses went up", "A soft answer", "The children of Israel",
    "Then came the disciples to him,", "O give thanks unto the LORD", "And there was a famine in the land",
    "Hear, O Israel", "And the angel said unto her,", "Remember now thy Creator", "My son, keep my words",
    "And they journeyed from", "The word of the LORD came unto me, saying,", "Paul, an apostle of Jesus Christ",
    "And I saw a new heaven", "And the king commanded", "It is the duty of every Christian",
    "The Psalmist here", "Let us learn from this", "And when the morning was come", "Behold, the day cometh",
    "And Solomon built", "The righteous man", "Thus saith the LORD", "And the sea", "Who can find a virtuous woman?",
    "For God so loved the world", "And he opened his mouth, and taught them, saying,", "How beautiful",
    "The sons of Levi", "Grace be unto you, and peace",
]


def user(content: str) -> dict:
    return {"role": "user", "content": content}


def called(name: str, arguments: dict, think: str) -> dict:
    return {"role": "assistant", "content": "", "think": think, "calls": [(name, arguments)]}


def result(name: str, content: str) -> dict:
    return {"role": "tool", "name": name, "index": 1, "content": content}


DEFINE, BOTH = [TOOLS["define"]], [TOOLS["define"], TOOLS["read"]]
LOOK_UP = "The user asks for the meaning of lantern. I look it up."
CHATS = [
    ([user("Hello")], dict(thinking=True)),
    ([user("What does mercy mean?")], dict(thinking=True)),
    ([user("What does mercy mean?")], dict(thinking=False)),
    ([user("Tell me about wisdom.")], dict(thinking=False)),
    ([user("Give me a verse from Psalms.")], dict(thinking=True, effort="high")),
    ([user("What is the meaning of shepherd?")], dict(thinking=True, tools=DEFINE)),
    ([user("What is the meaning of shepherd?")], dict(thinking=False, tools=BOTH)),
    ([user("What does lantern mean?"), called("define", {"word": "lantern"}, LOOK_UP),
      result("define", "lantern (noun): light in a transparent protective case")], dict(thinking=True, tools=DEFINE)),
    ([user("Define faith and hope.")], dict(thinking=True, tools=BOTH)),
    ([user("Read me Psalms 23:1.")], dict(thinking=True, tools=BOTH)),
    ([user("Read me Psalms 23:1."),
      called("read", {"book": "Psalms", "chapter": 23, "verse": 1}, "The user wants to hear Psalms 23:1. I read it."),
      result("read", "The LORD is my shepherd; I shall not want.")], dict(thinking=True, tools=BOTH)),
    ([{"role": "system", "content": "You are a helpful assistant."}, user("Define king."),
      {"role": "assistant", "content": "King is a noun: a male sovereign.", "think": "The user asks for the meaning of king."},
      user("Tell me about peace.")], dict(thinking=True)),
]

TOKENIZER_TEXTS = [
    "", " ", "In the beginning God created the heaven and the earth.", "Don't they'll we've I'M you'd IT'S",
    "1 12 123 1234 12345", "tabs\tand  two spaces   three\n\n\nnew lines \r\n end ", "    leading and trailing    ",
    "<|open|>message<|sep|> is ordinary text here <|end_of_msg|>", "naïve café œuvre Ærøskøbing ÉCOLE",
    "神愛世人 and 汉字123", "русский текст, ελληνικά, עברית, العربية", "👍🏽 emoji 🇩🇪 and e\u0301 combining",
    "{\"word\":\"love\",\"n\":[1,2.5,null]}", "snake_case camelCase HTTPServer x=y+z;", "...!!! ---\n", "\u00a0no-break\u3000wide",
    "ǅ ǈungla ʰmodifier ªordinal", "\x00\x01\x7f control", "a" * 40, "THE LORD's prayer's",
]
