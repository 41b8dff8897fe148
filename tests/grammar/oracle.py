#!/usr/bin/env python3
"""Random JSON schemas against other people's judges: `jsonschema`, and `llguidance` where it takes the schema.

    oracle.py PROBE [--count 1000] [--seed 0] [--llguidance]

For every schema: texts that PROBE (grammar_probe) makes under it are valid documents; valid documents with their members in the
order of `properties` are read, in three styles of json.dumps; documents that are not valid are not read. Schemas that combine others at
random may be refused by name, less than a tenth of all. With --llguidance what PROBE makes is also read by its parser.
"""
import argparse
import json
import random
import re
import subprocess
import sys

import jsonschema

LETTERS = 'ab"\\\n\u00e9\u4e2d\U0001F600 {}:,'
KEYS = ["a", "ab", "k0", "k1", 'q"', "\u00e9", "a b"]
PATTERNS = [("^[a-c]{2,4}$", "abc"), ("^x", "xyz"), ("[0-9]+$", "a1"), ("^(ab|cd)*$", "abcd"), ('^"\\\\\\\\', '"\\z'), ("", "")]
FORMATS = {"date": "2024-02-29", "time": "23:59:59Z", "date-time": "1999-12-31T00:00:00+01:00", "uuid": "0" * 8 + "-0000-4000-8000-" + "0" * 12,
           "ipv4": "10.0.255.1", "email": "a.b@example.org", "ipv6": "2001:db8::ff:0:1", "hostname": "a-1.example.org", "duration": "P1Y2M3DT4H5M6S",
           "uri": "https://u@h.org:80/a/b%20?q=1#f"}
# What the opposite of a schema, drawn at random, may come to.
REFUSALS = ["where the schema must not hold", "numbers that must not be whole", ": not: a number among", ": not: an object in enum"]
STYLES = [{"separators": (",", ":")}, {}, {"indent": 2}]


class Maker:
    """A schema and a maker of documents that are meant to be valid under it."""

    def __init__(self, rng):
        self.rng, self.definitions, self.may_be_refused = rng, {}, False

    def text(self, low=0, high=6):
        return "".join(self.rng.choice(LETTERS) for _ in range(self.rng.randint(low, high)))

    def any_value(self, depth=2):
        kind = self.rng.randrange(7 if depth else 5)
        if kind == 5:
            return [self.any_value(depth - 1) for _ in range(self.rng.randrange(3))]
        if kind == 6:
            return {self.rng.choice(KEYS): self.any_value(depth - 1) for _ in range(self.rng.randrange(3))}
        return [None, True, self.rng.randint(-1000, 1000), round(self.rng.uniform(-9, 9), 3), self.text()][kind]

    def make(self, depth):
        kinds = [self.string, self.integer, self.number, self.scalar, self.enum, self.multiple, self.narrow_string]
        if depth:
            kinds += [self.combination, self.named_by_patterns, self.counted, self.conditional, self.closed_late, self.different,
                      self.object, self.object, self.array, self.array, self.tuple, self.any_of, self.ref, self.all_of, self.one_of, self.anything]
        schema, value = self.rng.choice(kinds)(depth)
        if self.rng.random() < 0.1 and isinstance(schema, dict):
            schema = {**schema, "title": "t", "description": self.text()}
        return schema, value

    def anything(self, _):
        return self.rng.choice([{}, True]), self.any_value

    def string(self, _):
        kind = self.rng.randrange(4)
        if kind == 0:
            return {"type": "string"}, self.text
        if kind == 1:
            low = self.rng.randint(0, 3)
            high = low + self.rng.randint(0, 4)
            return {"type": "string", "minLength": low, "maxLength": high}, lambda: self.text(low, high)
        if kind == 2:
            pattern, value = self.rng.choice(PATTERNS)
            return {"type": "string", "pattern": pattern}, lambda: value
        name = self.rng.choice(list(FORMATS))
        return {"type": "string", "format": name}, lambda: FORMATS[name]

    def multiple(self, _):
        m, schema = self.rng.choice([2, 3, 7, 10, 25, 100]), self.bounds()
        low, high = -(-schema[1] // m), schema[2] // m
        if low > high:
            return {"type": "integer", "multipleOf": m}, lambda: m * self.rng.randint(-9, 9)
        return {"type": "integer", "multipleOf": m, **schema[0]}, lambda: m * self.rng.randint(low, high)

    def narrow_string(self, _):
        pattern, value, other = self.rng.choice([("^[a-c]+$", "abcabc", {"maxLength": 6}), ("b", "abc", {"minLength": 2, "maxLength": 4}),
                                                 ("^[a-z]+$", "xyz", {"not": {"enum": ["a", "xy", "xyza"]}}),
                                                 ("^.a", "aab", {"not": {"pattern": "^a\\wc$"}}), ("", "q", {"not": {"const": "a"}})])
        return {"type": "string", "pattern": pattern, **other}, lambda: value

    def atom(self):
        """What a value may be under, of any type."""
        n = self.rng.randint(-3, 9)
        name, value = self.rng.choice("abc"), self.rng.choice([{"type": "integer"}, {"const": 1}, {"minimum": n}, False, {"type": "string"}])
        return self.rng.choice([
            {"type": "integer"}, {"type": "string"}, {"type": ["object", "null"]}, {"minimum": n}, {"maximum": n}, {"exclusiveMinimum": n}, {"minLength": 2},
            {"maxLength": 2}, {"pattern": "^a"}, {"pattern": "[bc]$"}, {"enum": [1, 2, "a", None]}, {"const": n}, {"enum": ["ab", n, {"a": 1}]}, {"multipleOf": 3},
            {"type": "object", "required": [name]}, {"required": ["a", "b"]}, {"properties": {name: value}}, {"properties": {name: value}, "required": [name]},
            {"properties": {name: value}, "additionalProperties": False}, {"minProperties": 1}, {"maxProperties": 1}, {"maxProperties": 2},
            {"dependentRequired": {"a": ["b"]}}, {"dependentSchemas": {"b": {"required": ["c"]}}}, {"patternProperties": {"[ab]": value}}, {"maxItems": 1},
            {"propertyNames": {"enum": ["a", "c"]}}, {"propertyNames": {"not": {"const": "b"}}}, {"minItems": 2}, {"type": "array"}, {"type": ["boolean", "null"]}])

    def algebra(self, depth):
        if depth == 0 or self.rng.random() < 0.2:
            return self.atom()
        parts = [self.algebra(depth - 1) for _ in range(self.rng.randint(2, 3))]
        return self.rng.choice([{"allOf": parts}, {"anyOf": parts}, {"oneOf": parts}, {"not": parts[0]}, {"if": parts[0], "then": parts[1]},
                                {"if": parts[0], "then": parts[1], "else": parts[-1]}, {**parts[0], "not": parts[1]}, {**parts[0], "anyOf": parts[1:]}])

    # Values of all kinds; whether they are valid the validator says. Members come as the first schema has them.
    POOL = ([None, True, False, "", "a", "b", "ab", "abc", "aba", "cb", [], [1], [1, 2], ["a", None, 3]] + list(range(-5, 13)) +
            [dict(zip(keys, values)) for keys in [(), ("a",), ("b",), ("c",), ("a", "b"), ("a", "c"), ("b", "c"), ("a", "b", "c")]
             for values in [(1, 2, "x"), ("x", 1, 1), (7, "y", 5)]])

    def combination(self, _):
        self.may_be_refused = True
        types = ["null", "boolean", "string", "integer", "array", "object"]
        order = {"type": types, "properties": {"a": True, "b": True, "c": True}, "additionalProperties": False}
        return {"allOf": [order, self.algebra(2)]}, lambda: self.rng.choice(self.POOL)

    def named_by_patterns(self, depth):
        (a, va), (b, vb) = self.make(depth - 1), self.make(0)
        schema = {"type": "object", "properties": {"x1": a}, "patternProperties": {"^x": {}, "[0-9]$": b}, "additionalProperties": False}
        if self.rng.random() < 0.5:
            schema["propertyNames"] = {"maxLength": 3}
        return schema, lambda: {"x1": va(), **{k: vb() for k in ("x", "x9", "22") if self.rng.random() < 0.5}}

    def counted(self, depth):
        parts = {n: self.make(depth - 1) for n in ("p", "q", "r", "s")}
        low = self.rng.randint(0, 2)
        schema = {"type": "object", "properties": {n: p[0] for n, p in parts.items()}, "minProperties": low, "maxProperties": low + self.rng.randint(0, 2),
                  "dependentRequired": {"p": ["r"], "s": ["q"]}, "additionalProperties": False}
        return schema, lambda: {n: parts[n][1]() for n in parts if self.rng.random() < 0.5}

    def conditional(self, depth):
        (a, va), (b, vb) = self.make(depth - 1), self.make(depth - 1)
        schema = {"type": "object", "properties": {"kind": {"enum": ["a", "b", "c"]}, "v": {}}, "required": ["kind", "v"], "additionalProperties": False,
                  "if": {"properties": {"kind": {"const": "a"}}}, "then": {"properties": {"v": a}}, "else": {"properties": {"v": b}}}
        return schema, lambda: self.rng.choice([{"kind": "a", "v": va()}, {"kind": "b", "v": vb()}])

    def closed_late(self, depth):
        (a, va), (b, vb) = self.make(depth - 1), self.make(depth - 1)
        schema = {"type": "object", "properties": {"u": a}, "required": ["u"], "unevaluatedProperties": False,
                  "anyOf": [{"properties": {"v": b}, "required": ["v"]}, {"properties": {"w": {"type": "integer"}}, "required": ["w"]}]}
        return schema, lambda: {"u": va(), **self.rng.choice([{"v": vb()}, {"w": 1}, {"v": vb(), "w": 2}])}

    def different(self, _):
        values = self.rng.sample(["a", "b", 1, None, True, [1]], self.rng.randint(2, 4))
        high = self.rng.randint(1, len(values))
        return ({"type": "array", "items": {"enum": values}, "uniqueItems": True, "minItems": self.rng.randint(0, 1), "maxItems": high},
                lambda: self.rng.sample(values, self.rng.randint(1, high)))

    def bounds(self):
        low = self.rng.choice([None, self.rng.randint(-300, 300)])
        high = self.rng.choice([None, (low or 0) + self.rng.randint(2, 500)])
        schema = {}
        if low is not None:
            schema[self.rng.choice(["minimum", "exclusiveMinimum"])] = low
        if high is not None:
            schema[self.rng.choice(["maximum", "exclusiveMaximum"])] = high
        first, last = -1000 if low is None else low, 1000 if high is None else high
        if low is None and high is not None:
            first = high - 1000
        return schema, first, max(first, last)

    def integer(self, _):
        schema, low, high = self.bounds()
        return {"type": "integer", **schema}, lambda: self.rng.randint(low, high)

    def number(self, _):
        schema, low, high = self.bounds()
        return {"type": "number", **schema}, lambda: self.rng.choice([self.rng.randint(low, high), round(self.rng.uniform(low, high), 2)])

    def scalar(self, _):
        return self.rng.choice([({"type": "boolean"}, lambda: True), ({"type": "null"}, lambda: None),
                                ({"type": ["integer", "null"]}, lambda: self.rng.choice([3, None]))])

    def enum(self, _):
        values = [self.any_value(1) for _ in range(self.rng.randint(1, 4))]
        if len(values) == 1:
            return {"const": values[0]}, lambda: values[0]
        return {"enum": values}, lambda: self.rng.choice(values)

    def object(self, depth):
        names = self.rng.sample(KEYS, self.rng.randint(0, 4))
        parts = {n: self.make(depth - 1) for n in names}
        required = [n for n in names if self.rng.random() < 0.5]
        rest_schema, rest_value = self.rng.choice([(False, None), (None, self.any_value), self.make(0)])
        schema = {"type": "object", "properties": {n: parts[n][0] for n in names}, "required": required}
        if rest_schema is not None:
            schema["additionalProperties"] = rest_schema

        def value():
            out = {n: parts[n][1]() for n in names if n in required or self.rng.random() < 0.6}
            if rest_value:
                for key in ("zz", "a\\"):
                    if self.rng.random() < 0.4:
                        out[key] = rest_value()
            return out
        return schema, value

    def array(self, depth):
        item_schema, item_value = self.make(depth - 1)
        low = self.rng.choice([0, 0, 1, 2])
        high = self.rng.choice([None, low + self.rng.randint(0, 2)])
        schema = {"type": "array", "items": item_schema}
        if low:
            schema["minItems"] = low
        if high is not None:
            schema["maxItems"] = high
        return schema, lambda: [item_value() for _ in range(self.rng.randint(low, low + 2 if high is None else high))]

    def tuple(self, depth):
        parts = [self.make(depth - 1) for _ in range(self.rng.randint(1, 3))]
        return ({"type": "array", "prefixItems": [p[0] for p in parts], "items": False, "minItems": len(parts)},
                lambda: [p[1]() for p in parts])

    def any_of(self, depth):
        parts = [self.make(depth - 1) for _ in range(self.rng.randint(1, 3))]
        return {"anyOf": [p[0] for p in parts]}, lambda: self.rng.choice(parts)[1]()

    def one_of(self, depth):
        value_schema, value = self.make(depth - 1)
        names = self.rng.sample(["x", "y", "z"], 2)
        parts = [{"type": "object", "properties": {"kind": {"const": n}, "v": value_schema}, "required": ["kind", "v"],
                  "additionalProperties": False} for n in names]
        return {"oneOf": parts + [{"type": "null"}]}, lambda: {"kind": self.rng.choice(names), "v": value()}

    def all_of(self, depth):
        (a, va), (b, vb) = self.make(depth - 1), self.make(depth - 1)
        return ({"allOf": [{"type": "object", "properties": {"p": a}, "required": ["p"]}, {"type": "object", "properties": {"r": b}, "required": ["r"]}]},
                lambda: {"p": va(), "r": vb()})

    def ref(self, depth):
        if self.definitions and self.rng.random() < 0.5:
            name = self.rng.choice(list(self.definitions))
            if self.definitions[name]:
                return {"$ref": "#/$defs/" + name}, self.definitions[name][1]
        name = "d%d" % len(self.definitions)
        self.definitions[name] = None
        schema, value = self.make(depth - 1)
        if self.rng.random() < 0.3:  # a list of itself
            inner, inner_value = schema, value
            schema = {"type": "object", "properties": {"v": inner, "next": {"anyOf": [{"$ref": "#/$defs/" + name}, {"type": "null"}]}},
                      "required": ["v", "next"], "additionalProperties": False}
            value = lambda: {"v": inner_value(), "next": {"v": inner_value(), "next": None}}  # noqa: E731
        self.definitions[name] = (schema, value)
        return {"$ref": "#/$defs/" + name}, value

    def document(self):
        schema, value = self.make(3)
        schema = dict(schema) if isinstance(schema, dict) else {"anyOf": [schema]}
        if self.definitions:
            schema["$defs"] = {n: d[0] for n, d in self.definitions.items() if d}
        return schema, value


def mutate(rng, value):
    """Another value, near this one."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        out = dict(value)
        key = rng.choice(list(out))
        if rng.random() < 0.3:
            del out[key]
        else:
            out[key] = mutate(rng, out[key])
        return out
    if isinstance(value, list) and value and rng.random() < 0.8:
        out = list(value)
        i = rng.randrange(len(out))
        out[i:i + 1] = rng.choice([[], [mutate(rng, out[i])], [out[i], out[i]]])
        return out
    return rng.choice([None, True, 0, -1, 1.5, "", "q", [], {}, {"a": 1}, "abc", 10 ** 6])


class LlGuidance:
    def __init__(self):
        import llguidance
        self.lib, self.tokenizer = llguidance, llguidance.LLTokenizer("byte")
        self.taken = self.refused = self.passed_over = 0

    def judge(self, schema, texts):
        grammar = self.lib.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_flexible": True})
        matcher = self.lib.LLMatcher(self.tokenizer, grammar, log_level=0)
        if matcher.is_error():
            self.refused += 1
            return []
        self.taken += 1
        wrong = []
        for text in texts:
            if re.search(r"\\[u/]|\x7f|-0(?![.0-9])", text):  # RFC 8259 and json.loads take these, llguidance not everywhere
                self.passed_over += 1
                continue
            matcher.reset()
            tokens = self.tokenizer.tokenize_bytes(text.encode())
            if matcher.validate_tokens(tokens) != len(tokens):
                wrong.append(text)
        return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("probe")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--llguidance", action="store_true")
    args = parser.parse_args()
    probe = subprocess.Popen([args.probe], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    judge = LlGuidance() if args.llguidance else None
    seen = {"made": 0, "valid": 0, "invalid": 0, "unfinished": 0, "refused": 0}
    failures = []
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    for n in range(args.count):
        rng = random.Random(args.seed * 1_000_003 + n)
        maker = Maker(rng)
        schema, value = maker.document()
        validator = jsonschema.Draft202012Validator(schema, format_checker=checker)
        documents = [value() for _ in range(4)]
        documents += [mutate(rng, d) for d in documents for _ in range(3)]
        texts, wanted = [], []
        for i, d in enumerate(documents):
            valid = validator.is_valid(d)
            if valid and i >= 4:
                continue  # its members may have lost their order
            for style in STYLES:
                texts.append(json.dumps(d, ensure_ascii=False, **style))
                wanted.append(valid)
        probe.stdin.write(json.dumps({"schema": schema, "seed": n, "samples": 5, "accept": texts}) + "\n")
        probe.stdin.flush()
        answer = json.loads(probe.stdout.readline())
        if "error" in answer:
            seen["refused"] += 1
            contradiction = "matches no text" in answer["error"] and not any(wanted)
            if not maker.may_be_refused or not (contradiction or any(why in answer["error"] for why in REFUSALS)):
                failures.append((n, "refused", answer["error"], schema))
            continue
        seen["unfinished"] += answer["unfinished"]
        for text, want, got in zip(texts, wanted, answer["accepts"]):
            seen["valid" if want else "invalid"] += 1
            if want != got:
                failures.append((n, "valid, not read" if want else "not valid, but read", text, schema))
        for text in answer["samples"]:
            seen["made"] += 1
            try:
                validator.validate(json.loads(text))
            except (ValueError, jsonschema.ValidationError) as e:
                failures.append((n, f"made, but {str(e).splitlines()[0]}", text, schema))
        if judge:
            for text in judge.judge(schema, answer["samples"]):
                failures.append((n, "made, not read by llguidance", text, schema))
    probe.stdin.close()
    probe.wait()
    for n, what, text, schema in failures[:10]:
        print(f"schema {n}: {what}: {text}\n  {json.dumps(schema, ensure_ascii=False)}")
    if judge:
        seen.update(llguidance_took=judge.taken, llguidance_refused=judge.refused, llguidance_passed_over=judge.passed_over)
    print(f"{args.count} schemas, {len(failures)} failures;", ", ".join(f"{k} {v}" for k, v in seen.items()))
    assert seen["refused"] < 0.1 * args.count and seen["made"] > 4 * args.count and seen["valid"] > 6 * args.count and seen["invalid"] > 4 * args.count, "too little was tried"
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
