"""Reading and writing checkpoints in the release's layout: one shard per layer, one for the top level, an index.

Own reader and writer of safetensors: the tensors stay in the release's order (the six of an expert together), which
the usual library would sort away.
"""
import json
import struct
from pathlib import Path

import mxfp4
import torch
from model import Config, Experts, Model

PREFIX = "language_model."
DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "U8": torch.uint8, "I32": torch.int32}
NAMES = {v: k for k, v in DTYPES.items()}
F32_SUFFIXES = ("A_log", "dt_bias", "o_norm.weight", "conv1d.weight", "e_score_correction_bias")


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    data = bytearray(Path(path).read_bytes())
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    out = {}
    for name, info in header.items():
        if name != "__metadata__":
            begin, end = info["data_offsets"]
            flat = torch.frombuffer(data[8 + size + begin:8 + size + end], dtype=DTYPES[info["dtype"]])
            out[name] = flat.reshape(info["shape"])
    return out


def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> int:
    header, offset, blobs = {"__metadata__": {"format": "pt"}}, 0, []
    for name, t in tensors.items():
        blob = t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [offset, offset + len(blob)]}
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    return offset


def load(folder: Path) -> Model:
    """The model with the file's weights in float32, experts dequantised."""
    index = json.loads((Path(folder) / "model.safetensors.index.json").read_text())
    files = {}
    for shard in sorted(set(index["weight_map"].values())):
        files.update(read_tensors(Path(folder) / shard))
    if set(files) != set(index["weight_map"]):
        raise SystemExit("index and shards disagree")
    config = Config(folder)
    model = Model(config)
    for name, parameter in model.named_parameters():
        if ".experts.w" in name:
            stem, which = name.rsplit(".", 1)
            value = torch.stack([mxfp4.unpack(*(files.pop(f"{PREFIX}{stem}.{e}.{which}.weight_{part}")
                                                for part in ("packed", "scale")))
                                 for e in range(config.num_experts)])
        else:
            value = files.pop(PREFIX + name).float()
            if name.endswith("A_log"):
                value = value.flatten()[:parameter.numel()]  # stored padded with zeros to a multiple of 128
        if value.shape != parameter.shape:
            raise SystemExit(f"{name}: {tuple(value.shape)} in the file, {tuple(parameter.shape)} expected")
        parameter.data.copy_(value)
    if files:
        raise SystemExit(f"tensors left over: {sorted(files)[:5]}")
    return model.eval().requires_grad_(False)


def stored(name: str, parameter: torch.Tensor) -> torch.Tensor:
    if name.endswith("A_log"):
        padded = torch.zeros(-(-parameter.numel() // 128) * 128)
        padded[:parameter.numel()] = parameter.detach().cpu()
        return padded
    return parameter.detach().float() if name.endswith(F32_SUFFIXES) else parameter.detach().bfloat16()


def module_tensors(prefix: str, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    out = {}
    if isinstance(module, Experts):
        packed = {w: mxfp4.pack(getattr(module, w)) for w in ("w1", "w2", "w3")}
        for e in range(module.w1.shape[0]):
            for w, (codes, scale) in packed.items():
                out[f"{prefix}.{e}.{w}.weight_packed"] = codes[e]
                out[f"{prefix}.{e}.{w}.weight_scale"] = scale[e]
        return out
    for name, parameter in module.named_parameters(prefix, recurse=False):
        out[name] = stored(name, parameter)
    for name, child in module.named_children():
        out |= module_tensors(f"{prefix}.{name}" if prefix else name, child)
    return out


def export(model: Model, folder: Path) -> None:
    """Shards and index beside an existing config.json."""
    tensors = module_tensors("", model)
    shards: dict[int, dict] = {}
    count = model.c.num_hidden_layers + 1
    for name, t in tensors.items():
        parts = name.split(".")
        number = int(parts[2]) + 1 if parts[1] == "layers" else count
        shards.setdefault(number, {})[PREFIX + name] = t
    weight_map, total = {}, 0
    for number, content in sorted(shards.items()):
        file = f"model-{number:05d}-of-{count:06d}.safetensors"
        total += write_tensors(folder / file, content)
        weight_map |= dict.fromkeys(content, file)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
