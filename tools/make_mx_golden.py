#!/usr/bin/env python3
"""Writes tests/golden/ml_dtypes/mx.txt: what the PyPI package ml-dtypes says about the MX formats.

    python3 -m venv .venv && .venv/bin/pip install numpy ml-dtypes
    .venv/bin/python tools/make_mx_golden.py        (two minutes)

value FORMAT CODE BITS         the fp32 bits of every code of E4M3, E5M2, E8M0 and E2M1
blocks FORMAT RULE CHUNK CODES SCALES
                               sums over the codes and scale bytes of 50,000 random blocks of 32, a million for every format and rule

Blocks come from a counter (splitmix64), so the test makes the same ones. Elements are cast by ml-dtypes after division by the
scale; block maxima are rounded by it for the rule `even`. `rceil` compares with the exact quotient.
"""
import pathlib

import ml_dtypes
import numpy as np

FORMATS = {  # name: dtype, exponent of the largest value, largest value, sign bit
    "e4m3": (ml_dtypes.float8_e4m3fn, 8, 448.0, 7),
    "e5m2": (ml_dtypes.float8_e5m2, 15, 57344.0, 7),
    "e2m1": (ml_dtypes.float4_e2m1fn, 2, 6.0, 3),
}
RULES = ("floor", "rceil", "even")
CHUNKS, BLOCKS, WIDTH = 20, 50_000, 32
U64 = np.uint64


def splitmix(n: np.ndarray) -> np.ndarray:
    z = (n + U64(1)) * U64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> U64(27))) * U64(0x94D049BB133111EB)
    return z ^ (z >> U64(31))


def random_blocks(chunk: int) -> np.ndarray:
    """[BLOCKS, 32] fp32: any base exponent, elements up to 23 binades below it, long, bf16 and very short mantissas, and some
    blocks of zeros or with a NaN or an infinity."""
    first = chunk * BLOCKS
    base = splitmix(np.arange(first, first + BLOCKS, dtype=U64) ^ U64(1 << 60))
    element = splitmix(np.arange(first * WIDTH, (first + BLOCKS) * WIDTH, dtype=U64)).reshape(BLOCKS, WIDTH)
    exponent = (base & U64(0xFF)) % U64(255)
    below = (element >> U64(32)) % U64(24)
    field = np.maximum(exponent[:, None].astype(np.int64) - below.astype(np.int64), 0).astype(U64)
    kind = (base >> U64(8)) % U64(64)
    mantissa = element & U64(0x7FFFFF)
    mantissa = np.where((kind % U64(4) == 1)[:, None], mantissa & U64(0x7F0000), mantissa)
    mantissa = np.where((kind % U64(4) == 2)[:, None], mantissa & U64(0x780000), mantissa)
    bits = (element >> U64(63)) << U64(31) | field << U64(23) | mantissa
    bits = np.where((kind == U64(60))[:, None], bits & U64(0x80000000), bits)
    place = ((base >> U64(16)) % U64(WIDTH)).astype(np.int64)
    bad = np.flatnonzero(kind >= U64(62))
    bits[bad, place[bad]] = np.where(kind[bad] == U64(62), U64(0x7FC00000), U64(0xFF800000))
    return bits.astype(np.uint32).view(np.float32)


def exponents(amax: np.ndarray, rule: str, name: str) -> np.ndarray:
    """E of 2^E, without bounds, for finite amax above 0."""
    dtype, emax, largest, _ = FORMATS[name]
    m, e = np.frexp(amax.astype(np.float64))  # amax = m 2^e, 1/2 <= m < 1
    m, e = m * 2, e - 1
    if rule == "floor":
        return e - emax
    if rule == "rceil":
        return e - emax + (m * 2.0**emax > largest)
    # m, in [1, 2), is rounded by a cast; 2 is a normal value of every format.
    return e - emax + (m.astype(np.float32).astype(dtype).astype(np.float32) >= 2)


def quantise(x: np.ndarray, rule: str, name: str):
    dtype, _, largest, _ = FORMATS[name]
    amax = np.abs(x).max(axis=1)  # NaN when a NaN is there
    finite = np.isfinite(amax)
    usable = finite & (amax > 0)
    scale = np.zeros(len(x), dtype=np.int64)
    scale[usable] = np.maximum(exponents(amax[usable], rule, name), -127) + 127
    scaled = np.ldexp(np.where(finite[:, None], x, 0).astype(np.float64), (127 - scale)[:, None])
    codes = np.clip(scaled, -largest, largest)
    # An fp32 holds the quotient exactly but far below half of the least code.
    codes = codes.astype(np.float32).astype(dtype).view(np.uint8)
    codes = np.where(finite[:, None], codes, 0)
    scale[~finite] = 255
    return codes.astype(np.uint8), scale.astype(np.uint8)


def checksum(values: np.ndarray) -> int:
    flat = values.reshape(-1).astype(U64) + U64(1)
    return int((flat * splitmix(np.arange(len(flat), dtype=U64))).sum(dtype=U64))


def main() -> None:
    np.seterr(over="ignore", under="ignore", invalid="ignore")
    lines = [f"# ml-dtypes {ml_dtypes.__version__}, numpy {np.__version__}, tools/make_mx_golden.py"]
    tables = {name: dtype for name, (dtype, *_) in FORMATS.items()} | {"e8m0": ml_dtypes.float8_e8m0fnu}
    for name, dtype in tables.items():
        codes = np.arange(16 if name == "e2m1" else 256, dtype=np.uint8)
        bits = codes.view(dtype).astype(np.float32).view(np.uint32)
        lines += [f"value {name} {code} {bits[code]:08x}" for code in codes]
    for chunk in range(CHUNKS):
        x = random_blocks(chunk)
        for name in FORMATS:
            for rule in RULES:
                codes, scale = quantise(x, rule, name)
                lines.append(f"blocks {name} {rule} {chunk} {checksum(codes):016x} {checksum(scale):016x}")
    path = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/ml_dtypes/mx.txt"
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
