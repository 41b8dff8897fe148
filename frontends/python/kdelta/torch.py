"""Operators registered with PyTorch: torch.ops.kdelta.* after `import kdelta.torch`, or as functions of this module.

Each declares what it writes and has a fake implementation, and so goes through torch.compile without a graph break. Tensors are taken as
they are, without a copy; names and rules are those of kdelta.ops. The functions of this module raise what those do; through torch.ops
it is PyTorch who says which exceptions there are (a ValueError up to 2.14, a RuntimeError always later). On CUDA they run in PyTorch's
current stream, and may be captured in a graph. There is no backward pass.

`implementation` says what runs them: "stable ABI", compiled kernels on the C interface that PyTorch keeps stable from 2.10 on, or, with
an older PyTorch, "python": kdelta.ops over DLPack, with the same bits and some 15 us more a call.
"""

from __future__ import annotations

import ctypes
import pathlib
from collections.abc import Callable
from typing import Any

import torch

from kdelta import _core, ops

_SLOTS = "Tensor cu, Tensor slot, Tensor accepted, Tensor fresh"
_GATE = "str gate_kind='bounded', float lower_bound=-5., bool sigmoid_beta=True, bool l2_norm=True"
_PAGES = "Tensor cu, Tensor context_lengths, Tensor pages, int n_prefill, int n_decode, int max_len, int max_context"
_SITU = "float beta=4., float linear_beta=25., bool activate_left=True"

# A letter behind a tensor marks what is written in place.
_SCHEMAS = {
    "kda": f"Tensor q, Tensor k, Tensor v, Tensor gate, Tensor beta, Tensor a_log, Tensor dt_bias, Tensor(a!) state, {_SLOTS}, "
           f"int n_prefill, int n_decode, int max_len, float scale, Tensor? snapshot=None, Tensor(b!)? records=None, {_GATE}",
    "kda_replay": "Tensor(a!) state, Tensor records, Tensor slot, Tensor accepted",
    "kda_decode": "Tensor qkv, Tensor conv_weight, Tensor decay, Tensor beta, Tensor a_log, Tensor dt_bias, Tensor gate, "
                  f"Tensor norm_weight, Tensor(a!) state, Tensor(b!) window, {_SLOTS}, int n_decode, float scale, float norm_eps, {_GATE}",
    "short_conv": f"Tensor x, Tensor weight, Tensor(a!) state, {_SLOTS}, int n_prefill, int n_decode, int max_len, "
                  "Tensor? snapshot=None, bool silu=True",
    "gated_norm": "Tensor x, Tensor gate, Tensor? weight=None, float eps=1e-5, bool silu=False, Tensor? bias=None, Tensor? residual=None, "
                  "Tensor(a!)? sum_out=None, Tensor? live=None",
    "attn_res": "Tensor? blocks, int n, Tensor sum, Tensor score_weight, float eps=1e-5, Tensor? norm_weight=None, float norm_eps=1e-5, "
                "Tensor? addend=None, Tensor(a!)? sum_out=None",
    "activation": "Tensor gate, Tensor up, str kind='situ', float beta=4., float linear_beta=25.",
    "mx_quantize": "Tensor x, Tensor(a!) codes, Tensor(b!) scale, str format='f8_e4m3', str rule='floor', bool situ=False, "
                   f"{_SITU}, Tensor? group_counts=None",
    "mx_dequantize": "Tensor codes, Tensor scale, Tensor(a!) out, str format='f8_e4m3'",
    "dequant_situ": "Tensor x, Tensor(a!) y, Tensor? weight_scale=None, Tensor? activation_scale=None, Tensor? bias=None, "
                    "bool dynamic=True, Tensor? quant_scale=None, Tensor? quant_offset=None, Tensor? group_counts=None, "
                    f"Tensor(b!)? scale=None, {_SITU}",
    "mla_append": f"Tensor latent, Tensor rope, Tensor(a!) cache, {_PAGES}",
    "mla": "Tensor q, Tensor cache, Tensor kv_b, Tensor(a!) out, int nope, int rope, int value, int latent, float scale, "
           f"Tensor? kv_b_scale, str kv_b_format, {_PAGES}",
}
# A result is new: of one argument's shape and another's dtype. The other operators write into arguments alone.
_RESULTS = {"kda": ("v", "v"), "kda_decode": ("gate", "qkv"), "short_conv": ("x", "x"), "gated_norm": ("x", "x"),
            "attn_res": ("sum", "sum"), "activation": ("gate", "gate")}

__all__ = [*_SCHEMAS, "implementation"]

_library = torch.library.Library("kdelta", "DEF")
_KERNELS = pathlib.Path(_core.__file__).parent / "_torch_ops.so"
implementation = "stable ABI" if torch.__version__ >= (2, 10) else "python"


def _arguments(name: str) -> list[str]:
    return [a.name for a in getattr(torch.ops.kdelta, name).default._schema.arguments]


def _fake(name: str) -> Callable[..., Any]:
    names = _arguments(name)
    if name not in _RESULTS:
        return lambda *args, **options: None
    shape, dtype = (names.index(like) for like in _RESULTS[name])
    return lambda *args, **options: args[dtype].new_empty(args[shape].shape)


def _through_python(name: str) -> Callable[..., Any]:
    names, function = _arguments(name), getattr(ops, name)

    def call(*args: Any, **options: Any) -> Any:
        out = function(**dict(zip(names, args)), **options)
        return out if name in _RESULTS else None

    return call


for _name, _schema in _SCHEMAS.items():
    _library.define(f"{_name}({_schema}) -> {'Tensor' if _name in _RESULTS else '()'}", tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.register_fake(f"kdelta::{_name}", _fake(_name), lib=_library)
    if implementation == "python":
        for _key in ("CUDA", "CPU"):
            _library.impl(_name, _through_python(_name), _key)

if implementation == "stable ABI":
    torch.ops.load_library(str(_KERNELS))
    _order = ctypes.CDLL(str(_KERNELS)).kdelta_torch_arguments
    _order.restype, _order.argtypes = ctypes.c_char_p, [ctypes.c_char_p]
    for _name in _SCHEMAS:
        if (_order(_name.encode()) or b"").decode().split(",") != _arguments(_name):
            raise ImportError(f"{_KERNELS.name} was built with another version of kdelta/torch.py: arguments of {_name} differ")
    _refusal = ctypes.CDLL(str(_KERNELS)).kdelta_torch_refusal
    _refusal.restype, _refusal.argtypes = ctypes.c_char_p, [ctypes.POINTER(ctypes.c_int32)]

_EXCEPTIONS = {1: ValueError, 3: NotImplementedError, 4: MemoryError}  # of a kdelta_status


def _function(name: str) -> Callable[..., Any]:
    operator = getattr(torch.ops.kdelta, name).default
    if implementation == "python":
        return operator

    def call(*args: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return operator(*args, **options)
        try:
            return operator(*args, **options)
        except RuntimeError as error:
            status = ctypes.c_int32()
            message = (_refusal(status) or b"").decode()
            if not message or message not in str(error) or status.value not in _EXCEPTIONS:
                raise
            raise _EXCEPTIONS[status.value](message) from None

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"{operator._schema}. kdelta.ops.{name} says what it is."
    return call


for _name in _SCHEMAS:
    globals()[_name] = _function(_name)
