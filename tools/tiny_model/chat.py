"""Kimi K3's chat format as a list of segments, from the format description (open / close / message, segment rule).

A segment is ("special", token) or ("text", piece). Every text piece is encoded on its own, so BPE never merges
across a border. Messages are plain dictionaries:

    {"role": "system" | "user", "content": str}
    {"role": "assistant", "think": str, "content": str, "calls": [(name, {key: value})]}
    {"role": "tool", "name": str, "index": int, "content": str}
"""
import json

OPEN, CLOSE, SEP, END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"
EFFORT_TEXT = ("`thinking_effort` guides on how much to think in your thinking channel (not including the response "
               "channel), supported values include `low`, `medium`, `high`, and `max`.\n"
               "Now the system is invoked with `thinking_effort={}`.")


def opening(tag: str, **attributes) -> list:
    out = [("special", OPEN), ("text", tag)]
    for key, value in attributes.items():
        escaped = str(value).replace("&", "&amp;").replace('"', "&quot;")
        out += [("text", f" {key}"), ("text", '="'), ("text", escaped), ("text", '"')]
    return out + [("special", SEP)]


def closing(tag: str) -> list:
    return [("special", CLOSE), ("text", tag), ("special", SEP)]


def text(piece: str) -> list:
    return [("text", piece)] if piece else []


def element(tag: str, body: str, **attributes) -> list:
    return opening(tag, **attributes) + text(body) + closing(tag)


def message(body: list, **attributes) -> list:
    return opening("message", **attributes) + body + closing("message") + [("special", END)]


def argument(key: str, value) -> list:
    if isinstance(value, str):
        return element("argument", value, key=key, type="string")
    return element("argument", json.dumps(value, ensure_ascii=False), key=key, type="number")


def assistant_body(m: dict, thinking: bool) -> list:
    body = element("think", m.get("think", "")) if thinking else []
    body += element("response", m["content"])
    if m.get("calls"):
        body += opening("tools")
        for i, (name, arguments) in enumerate(m["calls"], 1):
            body += opening("call", tool=name, index=i)
            for key, value in arguments.items():
                body += argument(key, value)
            body += closing("call")
        body += closing("tools")
    return body


def tool_declaration(tools: list[dict]) -> list:
    listing = json.dumps(tools, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    body = f"# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n{listing}\n```"
    return message(text(body), role="system", type="tool-declare")


def encode(messages: list[dict], thinking: bool, tools: list[dict] = (), effort: str = "", prompt: bool = False) -> list:
    """`prompt` leaves the assistant's next message open, as a server does before it generates."""
    out = tool_declaration(tools) if tools else []
    if thinking and effort:
        out += message(text(EFFORT_TEXT.format(effort)), role="system", type="thinking-effort")
    for m in messages:
        if m["role"] == "assistant":
            out += message(assistant_body(m, thinking), role="assistant")
        elif m["role"] == "tool":
            out += message(text(m["content"]), role="tool", tool=m["name"], index=m["index"])
        else:
            out += message(text(m["content"]), role=m["role"])
    if prompt:
        out += opening("message", role="assistant") + opening("think" if thinking else "response")
    return out
