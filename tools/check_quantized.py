#!/usr/bin/env python3
"""Reads what `kdelta quantize` wrote with other people's code and compares it with its source.

    build/kdelta quantize SOURCE RESULT --scale-rule rceil
    python3 -m venv .venv && .venv/bin/pip install numpy ml-dtypes safetensors
    .venv/bin/python tools/check_quantized.py SOURCE RESULT [--scale-rule rceil]

`safetensors` reads both, `ml-dtypes` knows what codes and scales mean and rounds to them. Checked: every tensor of the source is
there once, as it was or quantised; names, shapes and dtypes are those of compressed-tensors; codes and scales are, byte for byte,
what the rule gives for the source's values; and the modules that `quantization_config` selects, by its targets and ignore lists as
compressed-tensors reads them, are exactly those stored that way."""
import argparse
import json
import pathlib
import re
import sys

import ml_dtypes
import numpy as np
import safetensors

BLOCK = 32
DTYPES = {"F32": np.float32, "BF16": ml_dtypes.bfloat16, "U8": np.uint8, "I8": np.int8,
          "F8_E4M3": ml_dtypes.float8_e4m3fn}
FORMATS = {"MXFP8": ml_dtypes.float8_e4m3fn, "MXFP4": ml_dtypes.float4_e2m1fn}


def read(folder):
    """name -> array, from every shard that the index names, or from the only file."""
    folder, tensors = pathlib.Path(folder), {}
    index = folder / "model.safetensors.index.json"
    names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()) if index.exists() else {"model.safetensors"}
    for path in (folder / name for name in sorted(names)):
        for name, t in safetensors.deserialize(path.read_bytes()):
            if name in tensors:
                raise SystemExit(f"{path}: tensor {name}: twice")
            tensors[name] = np.frombuffer(t["data"], DTYPES[t["dtype"]]).reshape(t["shape"])
    return tensors


def scales(x, fmt, rule):
    """E8M0 bytes of [rows, blocks, 32] fp32 values, in fp64 so that nothing rounds."""
    largest = float(ml_dtypes.finfo(fmt).max)
    amax = np.abs(x).max(-1).astype(np.float64)
    top = int(np.floor(np.log2(largest)))
    with np.errstate(divide="ignore"):
        if rule == "rceil":
            mantissa, exponent = np.frexp(amax / largest)  # amax / largest = m 2^e, m in [0.5, 1)
            e = exponent - (mantissa == 0.5)
        elif rule == "floor":
            e = np.frexp(amax)[1] - 1 - top
        else:  # even: amax rounded to the format's own mantissa first
            bits = {ml_dtypes.float8_e4m3fn: 3, ml_dtypes.float4_e2m1fn: 1}[fmt]
            mantissa, exponent = np.frexp(amax)
            e = exponent - 1 - top + (mantissa >= 1 - 2.0 ** -(bits + 2))
    return np.where(amax == 0, 0, np.clip(e + 127, 0, 254)).astype(np.uint8)


def quantised(weight, fmt, rule):
    """Codes, one a byte, and scale bytes of a matrix."""
    x = weight.astype(np.float32).reshape(weight.shape[0], -1, BLOCK)
    s = scales(x, fmt, rule)
    unit = s.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)[..., None]
    largest = float(ml_dtypes.finfo(fmt).max)
    y = np.clip(x.astype(np.float64) / unit, -largest, largest).astype(np.float32)
    codes = y.astype(fmt).view(np.uint8) & (0xFF if fmt is ml_dtypes.float8_e4m3fn else 0x0F)
    return codes.reshape(weight.shape), s


class Failures(list):
    def expect(self, ok, what):
        if not ok:
            self.append(what)


def check_matrix(name, weight, result, rule, failures):
    """One matrix of the source; returns the format that it has in the result."""
    base = name.removesuffix(".weight")
    packed, plain, scale = (result.get(base + end) for end in (".weight_packed", ".weight", ".weight_scale"))
    failures.expect((packed is None) != (plain is None), f"{name}: stored twice or not at all")
    if packed is not None:
        fmt, codes = "MXFP4", np.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], -1)
        failures.expect(packed.dtype == np.uint8, f"{name}: {packed.dtype}")
    elif plain.dtype == ml_dtypes.float8_e4m3fn:
        fmt, codes = "MXFP8", plain.view(np.uint8)
    elif plain.dtype == np.int8:
        check_int8(name, weight, plain, scale, failures)
        return "int8"
    else:
        failures.expect(plain.dtype == weight.dtype and plain.tobytes() == weight.tobytes(), f"{name}: not copied byte for byte")
        return None
    failures.expect(codes.shape == weight.shape, f"{name}: codes {codes.shape} of {weight.shape}")
    shape = (weight.shape[0], weight.shape[1] // BLOCK)
    failures.expect(scale is not None and scale.dtype == np.uint8 and scale.shape == shape, f"{name}: scale is not U8 {shape}")
    want_codes, want_scale = quantised(weight, FORMATS[fmt], rule)
    failures.expect(np.array_equal(scale, want_scale), f"{name}: scales differ from the rule {rule}")
    # Both zeros are zero.
    decode = lambda c, s: (c.view(FORMATS[fmt]).astype(np.float64).reshape(*s.shape, BLOCK)
                           * s.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)[..., None])
    failures.expect(np.array_equal(decode(codes, scale), decode(want_codes, want_scale)), f"{name}: values differ from the rule {rule}")
    return fmt


def check_int8(name, weight, codes, scale, failures):
    x = weight.astype(np.float32)
    amax = np.abs(x).max(1, keepdims=True)
    want = np.where(amax / np.float32(127) > 0, amax / np.float32(127), np.float32(1))
    failures.expect(scale is not None and scale.dtype == np.float32 and np.array_equal(scale, want), f"{name}: scale differs")
    failures.expect(np.array_equal(codes, np.rint(x / want).astype(np.int8)), f"{name}: codes differ")


def scheme(group):
    w = group["weights"]
    if (w["type"], w["num_bits"], w["strategy"], w["group_size"]) == ("float", 8, "group", BLOCK):
        return "MXFP8"
    if (w["type"], w["num_bits"], w["strategy"], w["group_size"]) == ("float", 4, "group", BLOCK):
        return "MXFP4"
    if (w["type"], w["num_bits"], w["strategy"]) == ("int", 8, "channel"):
        return "int8"
    return f"unknown: {w}"


def selected(module, config):
    """The scheme that a reader gives a linear module: ignore first, then a target that names it, then its class."""
    named = lambda pattern: re.match(pattern[3:], module) if pattern.startswith("re:") else pattern == module
    if any(named(p) for p in config["ignore"]):
        return None
    groups = config["config_groups"].values()
    by_name = [g for g in groups if any(named(t) for t in g["targets"])]
    by_class = [g for g in groups if "Linear" in g["targets"]]
    return scheme((by_name or by_class)[0]) if by_name or by_class else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("result")
    parser.add_argument("--scale-rule", choices=["floor", "rceil", "even"], default="rceil")
    args = parser.parse_args()
    source, result = read(args.source), read(args.result)
    config = json.loads((pathlib.Path(args.result) / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config", config)["quantization_config"]
    failures, counts, expected = Failures(), {}, set()
    for name, tensor in source.items():
        linear = name.endswith(".weight") and tensor.ndim == 2 and "embed_tokens" not in name
        base = name.removesuffix(".weight")
        if linear and tensor.dtype in (np.float32, ml_dtypes.bfloat16) and "conv1d" not in name:
            fmt = check_matrix(name, tensor, result, args.scale_rule, failures)
        else:
            same = name in result and result[name].dtype == tensor.dtype and result[name].tobytes() == tensor.tobytes()
            failures.expect(same, f"{name}: not copied byte for byte")
            base, fmt = name.removesuffix(".weight_packed"), "MXFP4" if name.endswith(".weight_packed") else None
            linear = fmt is not None
        expected |= {base + end for end in {"MXFP4": (".weight_packed", ".weight_scale"), None: ()}.get(fmt, (".weight", ".weight_scale"))}
        if fmt is None:
            expected.add(name)
        if linear:
            counts[fmt] = counts.get(fmt, 0) + 1
            failures.expect(selected(base, config) == fmt, f"{base}: stored {fmt}, the config selects {selected(base, config)}")
    failures.expect(expected == set(result), f"tensors too many or too few: {sorted(expected ^ set(result))[:5]}")
    for failure in failures[:20]:
        print(failure)
    stored = ", ".join(f"{n} {fmt or 'as they were'}" for fmt, n in counts.items())
    print(f"{len(failures)} failures" if failures else f"{len(source)} tensors, of them matrices: {stored}: as the rule, the names and the config say")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
