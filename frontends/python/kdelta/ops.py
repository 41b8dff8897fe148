"""The operators on anything that speaks DLPack: numpy, torch, jax and others, without a copy.

Shapes, dtypes and rules are those of the C interface (kdelta/api/c_ops.h). What an operator writes it writes in place; `out` may
be left out where an array of the first argument's kind can be made. numpy has no bfloat16 of its own: arrays of ml_dtypes.bfloat16
are taken as such. The GIL is released while an operator runs. On CUDA the work goes into torch's current stream, whoever made the arrays,
and scratch comes from torch; `Context.run` takes both from elsewhere.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

from kdelta import _core

__all__ = ["Context", "kda", "kda_replay", "kda_decode", "short_conv", "gated_norm", "attn_res", "activation", "mx_quantize", "mx_dequantize",
           "dequant_situ", "mla_append", "mla"]

Array = Any  # has __dlpack__
Context = _core.Context

_GATES = {"softplus": 0, "bounded": 1}
_KINDS = {"swiglu": 0, "situ": 1, "sigmoid_gate": 2}
_FORMATS = {"plain": 0, "f8_e4m3": 1, "f8_e5m2": 2, "f4_e2m1": 3}
_RULES = {"floor": 0, "rceil": 1, "even": 2}
_contexts: dict[tuple[str, int], _core.Context] = {}
_making = threading.Lock()


def _named(names: dict[str, int], name: str, argument: str) -> int:
    if name not in names:
        raise ValueError(f"{argument}: {name!r}, expected one of {', '.join(names)}")
    return names[name]


def _device(array: Array) -> tuple[str, int]:
    if type(array).__module__ == "torch":  # whose __dlpack_device__ takes some microseconds
        return ("cuda", array.get_device()) if array.is_cuda else ("cpu", 0)
    kind, index = array.__dlpack_device__() if hasattr(array, "__dlpack_device__") else (1, 0)
    return ("cuda", int(index)) if int(kind) in (2, 13) else ("cpu", 0)


def _context(device: tuple[str, int]) -> _core.Context:
    """One for each device and process, made when it is first needed."""
    key = (*device, os.getpid())
    with _making:
        if key not in _contexts:
            _contexts[key] = Context(*device)
        return _contexts[key]


@functools.cache
def _torch_of(index: int) -> tuple[Callable[[int], Array], Callable[[], int]]:
    """Scratch of a CUDA device from torch's allocator, and the handle of torch's current stream there."""
    import torch

    device = torch.device("cuda", index)
    return (lambda size: torch.empty(size, dtype=torch.uint8, device=device)), lambda: torch.cuda.current_stream(device).cuda_stream


def _run(op: str, like: Array, context: _core.Context | None, arguments: dict[str, Any]) -> None:
    device = _device(like)
    context = context or _context(device)
    if device[0] == "cpu":
        context.run(op, arguments)
        return
    scratch, stream = _torch_of(device[1])
    # A torch that has this says by itself which stream is its current one.
    context.run(op, arguments, None if hasattr(type(like), "__dlpack_c_exchange_api__") else stream(), scratch)


def _empty(like: Array, shape: tuple[int, ...] | None = None) -> Array:
    """An array of the same library, dtype and device."""
    module = type(like).__module__.split(".")[0]
    if module == "torch":
        return like.new_empty(tuple(like.shape) if shape is None else shape)
    if module == "numpy":
        import numpy

        return numpy.empty(like.shape if shape is None else shape, like.dtype)
    raise TypeError(f"out: missing, and no array can be made like one of {type(like)}")


def kda(q: Array, k: Array, v: Array, gate: Array, beta: Array, a_log: Array, dt_bias: Array, *, state: Array, cu: Array,
        slot: Array, accepted: Array, fresh: Array, n_prefill: int, n_decode: int, max_len: int = 0,
        snapshot: Array | None = None, records: Array | None = None, gate_kind: str = "bounded", lower_bound: float = -5.0,
        sigmoid_beta: bool = True, l2_norm: bool = True, scale: float | None = None, out: Array | None = None,
        context: _core.Context | None = None) -> Array:
    """Kimi Delta Attention: chunked prefill, steps and verification. Returns out [T, H, V]; state changes in place."""
    out = _empty(v) if out is None else out
    _run("kda", q, context, dict(
        q=q, k=k, v=v, gate=gate, beta=beta, a_log=a_log, dt_bias=dt_bias, gate_kind=_named(_GATES, gate_kind, "kda: gate_kind"),
        lower_bound=lower_bound, beta_kind=0 if sigmoid_beta else 1, norm_kind=0 if l2_norm else 1,
        scale=q.shape[-1] ** -0.5 if scale is None else scale, cu=cu, slot=slot, accepted=accepted, fresh=fresh, snapshot=snapshot,
        n_prefill=n_prefill, n_decode=n_decode, max_len=max_len or q.shape[0], state=state, records=records, out=out))
    return out


def kda_replay(state: Array, records: Array, slot: Array, accepted: Array, *, context: _core.Context | None = None) -> None:
    """Applies the records of accepted drafts to the states, in place."""
    _run("kda_replay", state, context, dict(state=state, records=records, slot=slot, accepted=accepted))


def kda_decode(qkv: Array, conv_weight: Array, decay: Array, beta: Array, a_log: Array, dt_bias: Array, gate: Array, norm_weight: Array,
               *, state: Array, window: Array, cu: Array, slot: Array, accepted: Array, fresh: Array, n_decode: int,
               gate_kind: str = "bounded", lower_bound: float = -5.0, sigmoid_beta: bool = True, l2_norm: bool = True,
               scale: float | None = None, norm_eps: float = 1e-5, out: Array | None = None,
               context: _core.Context | None = None) -> Array:
    """One token a sequence: short_conv of q | k | v, kda, gated_norm. Returns out [T, H, V]; state and window change in place."""
    out = _empty(qkv, tuple(gate.shape)) if out is None else out
    _run("kda_decode", qkv, context, dict(
        qkv=qkv, conv_weight=conv_weight, decay=decay, beta=beta, a_log=a_log, dt_bias=dt_bias,
        gate_kind=_named(_GATES, gate_kind, "kda_decode: gate_kind"), lower_bound=lower_bound, beta_kind=0 if sigmoid_beta else 1,
        norm_kind=0 if l2_norm else 1, scale=decay.shape[-1] ** -0.5 if scale is None else scale, gate=gate, norm_weight=norm_weight,
        norm_eps=norm_eps, cu=cu, slot=slot, accepted=accepted, fresh=fresh, n_prefill=0, n_decode=n_decode, max_len=1, state=state,
        window=window, out=out))
    return out


def short_conv(x: Array, weight: Array, *, state: Array, cu: Array, slot: Array, accepted: Array, fresh: Array, n_prefill: int,
               n_decode: int, max_len: int = 0, snapshot: Array | None = None, silu: bool = True, out: Array | None = None,
               split: tuple[Array, Array, Array] | None = None, context: _core.Context | None = None) -> Array:
    """Causal depthwise convolution with a carried window. Returns out [T, C], or split."""
    if split is None and out is None:
        out = _empty(x)
    parts = split or (None, None, None)
    _run("short_conv", x, context, {
        "x": x, "weight": weight, "silu": int(silu), "cu": cu, "slot": slot, "accepted": accepted, "fresh": fresh, "snapshot": snapshot,
        "n_prefill": n_prefill, "n_decode": n_decode, "max_len": max_len or x.shape[0], "state": state, "out": out,
        "split[0]": parts[0], "split[1]": parts[1], "split[2]": parts[2]})
    return split if out is None else out


def gated_norm(x: Array, gate: Array, weight: Array | None = None, *, bias: Array | None = None, residual: Array | None = None,
               sum_out: Array | None = None, silu: bool = False, eps: float = 1e-5, live: Array | None = None,
               out: Array | None = None, context: _core.Context | None = None) -> Array:
    """RMS norm of each head times an activated gate."""
    out = _empty(x) if out is None else out
    _run("gated_norm", x, context, dict(x=x, gate=gate, weight=weight, bias=bias, residual=residual, sum_out=sum_out,
                                        silu=int(silu), eps=eps, live=live, out=out))
    return out


def attn_res(blocks: Array | None, sum: Array, score_weight: Array, *, n: int | None = None, eps: float = 1e-5,
             norm_weight: Array | None = None, norm_eps: float = 1e-5, addend: Array | None = None, sum_out: Array | None = None,
             out: Array | None = None, context: _core.Context | None = None) -> Array:
    """Softmax mixture of the first n block outputs and the running sum, or sum_out = sum + addend."""
    out = _empty(sum) if out is None else out
    n = n if n is not None else 0 if blocks is None else blocks.shape[0]
    _run("attn_res", sum, context, dict(blocks=blocks, n=n, sum=sum, addend=addend, sum_out=sum_out, score_weight=score_weight,
                                        eps=eps, norm_weight=norm_weight, norm_eps=norm_eps, out=out))
    return out


def activation(gate: Array, up: Array, kind: str = "situ", *, beta: float = 4.0, linear_beta: float = 25.0,
               out: Array | None = None, context: _core.Context | None = None) -> Array:
    """situ, swiglu or sigmoid_gate of two branches [T, N]."""
    out = _empty(gate) if out is None else out
    _run("activation", gate, context, dict(kind=_named(_KINDS, kind, "activation: kind"), beta=beta, linear_beta=linear_beta,
                                           gate=gate, up=up, out=out))
    return out


def mx_quantize(x: Array, codes: Array, scale: Array, format: str = "f8_e4m3", *, rule: str = "floor", situ: bool = False,
                beta: float = 4.0, linear_beta: float = 25.0, activate_left: bool = True, group_counts: Array | None = None,
                context: _core.Context | None = None) -> None:
    """To MX codes and their scales (uint8), in place."""
    _run("mx_quantize", x, context, dict(x=x, codes=codes, scale=scale, format=_named(_FORMATS, format, "mx_quantize: format"),
                                         rule=_named(_RULES, rule, "mx_quantize: rule"), situ=int(situ), beta=beta,
                                         linear_beta=linear_beta, activate_left=int(activate_left), group_counts=group_counts))


def mx_dequantize(codes: Array, scale: Array, out: Array, format: str = "f8_e4m3", *,
                  context: _core.Context | None = None) -> Array:
    """From MX codes and scales to out [T, N]."""
    _run("mx_dequantize", codes, context, dict(codes=codes, scale=scale, out=out,
                                               format=_named(_FORMATS, format, "mx_dequantize: format")))
    return out


def dequant_situ(x: Array, y: Array, *, weight_scale: Array | None = None, activation_scale: Array | None = None,
                 bias: Array | None = None, dynamic: bool = True, quant_scale: Array | None = None,
                 quant_offset: Array | None = None, group_counts: Array | None = None, scale: Array | None = None,
                 beta: float = 4.0, linear_beta: float = 25.0, activate_left: bool = True,
                 context: _core.Context | None = None) -> Array:
    """Accumulators of an int8 product through SiTU to int8 y."""
    _run("dequant_situ", x, context, dict(
        x=x, y=y, weight_scale=weight_scale, activation_scale=activation_scale, bias=bias, dynamic=int(dynamic),
        quant_scale=quant_scale, quant_offset=quant_offset, group_counts=group_counts, scale=scale, beta=beta,
        linear_beta=linear_beta, activate_left=int(activate_left)))
    return y


def mla_append(latent: Array, rope: Array, cache: Array, *, cu: Array, context_lengths: Array, pages: Array, n_prefill: int,
               n_decode: int, max_len: int, max_context: int, context: _core.Context | None = None) -> None:
    """Stores latents in the pages of their sequences."""
    _run("mla_append", latent, context, dict(latent=latent, rope=rope, cache=cache, cu=cu, context=context_lengths, pages=pages,
                                             n_prefill=n_prefill, n_decode=n_decode, max_len=max_len, max_context=max_context))


def mla(q: Array, cache: Array, kv_b: Array, out: Array, *, nope: int, rope: int, value: int, latent: int, scale: float | None = None,
        kv_b_scale: Array | None = None, kv_b_format: str = "plain", cu: Array, context_lengths: Array, pages: Array,
        n_prefill: int, n_decode: int, max_len: int, max_context: int, context: _core.Context | None = None) -> Array:
    """Multi-head latent attention over paged latents."""
    _run("mla", q, context, dict(
        q=q, cache=cache, kv_b=kv_b, kv_b_scale=kv_b_scale, kv_b_format=_named(_FORMATS, kv_b_format, "mla: kv_b_format"), cu=cu,
        context=context_lengths, pages=pages, n_prefill=n_prefill, n_decode=n_decode, max_len=max_len, max_context=max_context,
        nope=nope, rope=rope, value=value, latent=latent, scale=(nope + rope) ** -0.5 if scale is None else scale, out=out))
    return out
