"""Operators registered with PyTorch: torch.ops.kdelta.* after `import kdelta.torch`.

Each has a fake implementation, declares what it writes, and so goes through torch.compile without a graph break. They are registered
from Python over kdelta.ops; the work itself, views and rules are those.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kdelta import ops

__all__ = ["kda", "kda_replay", "short_conv", "gated_norm", "attn_res", "activation"]


@torch.library.custom_op("kdelta::kda", mutates_args=("state", "records"))
def kda(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, beta: Tensor, a_log: Tensor, dt_bias: Tensor, state: Tensor, cu: Tensor,
        slot: Tensor, accepted: Tensor, fresh: Tensor, n_prefill: int, n_decode: int, max_len: int, scale: float,
        snapshot: Tensor | None = None, records: Tensor | None = None, gate_kind: str = "bounded", lower_bound: float = -5.0,
        sigmoid_beta: bool = True, l2_norm: bool = True) -> Tensor:
    return ops.kda(q, k, v, gate, beta, a_log, dt_bias, state=state, cu=cu, slot=slot, accepted=accepted, fresh=fresh,
                   n_prefill=n_prefill, n_decode=n_decode, max_len=max_len, snapshot=snapshot, records=records, gate_kind=gate_kind,
                   lower_bound=lower_bound, sigmoid_beta=sigmoid_beta, l2_norm=l2_norm, scale=scale,
                   out=torch.empty(v.shape, dtype=v.dtype, device=v.device))


@kda.register_fake
def _(q, k, v, *rest, **options):
    return torch.empty(v.shape, dtype=v.dtype, device=v.device)


@torch.library.custom_op("kdelta::kda_replay", mutates_args=("state",))
def kda_replay(state: Tensor, records: Tensor, slot: Tensor, accepted: Tensor) -> None:
    ops.kda_replay(state, records, slot, accepted)


@kda_replay.register_fake
def _(state, records, slot, accepted):
    return None


@torch.library.custom_op("kdelta::short_conv", mutates_args=("state",))
def short_conv(x: Tensor, weight: Tensor, state: Tensor, cu: Tensor, slot: Tensor, accepted: Tensor, fresh: Tensor, n_prefill: int,
               n_decode: int, max_len: int, snapshot: Tensor | None = None, silu: bool = True) -> Tensor:
    return ops.short_conv(x, weight, state=state, cu=cu, slot=slot, accepted=accepted, fresh=fresh, n_prefill=n_prefill,
                          n_decode=n_decode, max_len=max_len, snapshot=snapshot, silu=silu,
                          out=torch.empty(x.shape, dtype=x.dtype, device=x.device))


@short_conv.register_fake
def _(x, *rest, **options):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@torch.library.custom_op("kdelta::gated_norm", mutates_args=())
def gated_norm(x: Tensor, gate: Tensor, weight: Tensor | None = None, eps: float = 1e-5, silu: bool = False) -> Tensor:
    return ops.gated_norm(x, gate, weight, eps=eps, silu=silu, out=torch.empty(x.shape, dtype=x.dtype, device=x.device))


@gated_norm.register_fake
def _(x, *rest, **options):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@torch.library.custom_op("kdelta::attn_res", mutates_args=())
def attn_res(blocks: Tensor, n: int, sum: Tensor, score_weight: Tensor, eps: float, norm_weight: Tensor | None = None,
             norm_eps: float = 1e-5) -> Tensor:
    return ops.attn_res(blocks, sum, score_weight, n=n, eps=eps, norm_weight=norm_weight, norm_eps=norm_eps,
                        out=torch.empty(sum.shape, dtype=sum.dtype, device=sum.device))


@attn_res.register_fake
def _(blocks, n, sum, *rest, **options):
    return torch.empty(sum.shape, dtype=sum.dtype, device=sum.device)


@torch.library.custom_op("kdelta::activation", mutates_args=())
def activation(gate: Tensor, up: Tensor, kind: str = "situ", beta: float = 4.0, linear_beta: float = 25.0) -> Tensor:
    return ops.activation(gate, up, kind, beta=beta, linear_beta=linear_beta,
                          out=torch.empty(gate.shape, dtype=gate.dtype, device=gate.device))


@activation.register_fake
def _(gate, up, *rest, **options):
    return torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
