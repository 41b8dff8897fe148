#!/usr/bin/env python3
"""Writes a checkpoint folder with as many tensors as Kimi K3's routed experts, each of a few bytes.

    tools/make_test_checkpoint.py FOLDER [--layers 93] [--experts 896]

One shard per layer, six tensors per expert, and the index: 499,968 entries by default. For measuring how long it takes to open a
checkpoint (docs/decisions/0002-checkpoint-validation.md) and for trying what a reader says about damaged ones.
"""
import argparse
import json
import pathlib
import struct

SHAPES = {"weight_packed": [2, 16], "weight_scale": [2, 1]}


def shard(layer: int, experts: int) -> tuple[dict, int]:
    """Header of one layer's file and the bytes of its data."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for expert in range(experts):
        for matrix in ("w1", "w2", "w3"):
            for suffix, shape in SHAPES.items():
                name = f"language_model.model.layers.{layer}.block_sparse_moe.experts.{expert}.{matrix}.{suffix}"
                end = offset + shape[0] * shape[1]
                header[name] = {"dtype": "U8", "shape": shape, "data_offsets": [offset, end]}
                offset = end
    return header, offset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=93)
    parser.add_argument("--experts", type=int, default=896)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    weight_map, total = {}, 0
    for layer in range(args.layers):
        name = f"model-{layer + 1:05d}-of-{args.layers:06d}.safetensors"
        header, size = shard(layer, args.experts)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        (args.folder / name).write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))
        weight_map |= {tensor: name for tensor in header if tensor != "__metadata__"}
        total += size
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (args.folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


if __name__ == "__main__":
    main()
