"""chunk_kda and fused_recurrent_kda with the argument names and meanings of flash-linear-attention (fla-core 0.6), forward only.

Tensors may be torch's or numpy's (ml_dtypes for bfloat16). A precomputed decay (use_gate_in_kernel=False) is passed to the operator
as the softplus whose value it is: exact to a few units in the last place of float32.
"""

from __future__ import annotations

from typing import Any

from kdelta import ops

__all__ = ["chunk_kda", "fused_recurrent_kda"]


class _Numpy:
    def __init__(self, like: Any):
        import numpy

        self.np = numpy

    def integers(self, values: list[Any]) -> Any:
        return self.np.array(values, self.np.int32)

    def bytes(self, values: list[int]) -> Any:
        return self.np.array(values, self.np.uint8)

    def zeros(self, *shape: int) -> Any:
        return self.np.zeros(shape, self.np.float32)

    def float32(self, x: Any) -> Any:
        return self.np.ascontiguousarray(x, self.np.float32)

    def dense(self, x: Any, *shape: int) -> Any:
        return self.np.ascontiguousarray(x).reshape(shape)

    def swap_last(self, x: Any) -> Any:
        return self.np.ascontiguousarray(self.np.swapaxes(x, -1, -2))

    def softplus_inverse(self, decay: Any) -> Any:
        x = -self.np.asarray(decay, self.np.float64)
        if (x < 0).any():
            raise ValueError("g: a positive log decay, expected 0 or less")
        with self.np.errstate(divide="ignore"):
            return (x + self.np.log(-self.np.expm1(-x))).astype(self.np.float32)


class _Torch:
    def __init__(self, like: Any):
        import torch

        self.torch, self.device = torch, like.device

    def integers(self, values: list[Any]) -> Any:
        return self.torch.tensor(values, dtype=self.torch.int32, device=self.device)

    def bytes(self, values: list[int]) -> Any:
        return self.torch.tensor(values, dtype=self.torch.uint8, device=self.device)

    def zeros(self, *shape: int) -> Any:
        return self.torch.zeros(shape, dtype=self.torch.float32, device=self.device)

    def float32(self, x: Any) -> Any:
        return x.detach().to(self.torch.float32).contiguous()

    def dense(self, x: Any, *shape: int) -> Any:
        return x.detach().contiguous().reshape(shape)

    def swap_last(self, x: Any) -> Any:
        return x.transpose(-1, -2).contiguous()

    def softplus_inverse(self, decay: Any) -> Any:
        x = -decay.detach().double()
        if bool((x < 0).any()):
            raise ValueError("g: a positive log decay, expected 0 or less")
        return (x + self.torch.log(-self.torch.expm1(-x))).to(self.torch.float32)


def _library(q: Any) -> Any:
    module = type(q).__module__.split(".")[0]
    if module not in ("numpy", "torch"):
        raise TypeError(f"q: {type(q)}, expected a tensor of torch or numpy")
    return (_Torch if module == "torch" else _Numpy)(q)


def _refuse(name: str, given: Any, why: str) -> None:
    raise NotImplementedError(f"{name}: {given!r} is not supported: {why}")


def _check(q: Any, k: Any, v: Any, g: Any, beta: Any, allow_neg_eigval: bool, rest: dict[str, Any]) -> None:
    for name, value in rest.items():
        if value not in (None, False):
            _refuse(name, value, "kdelta computes the forward pass of chunk_kda and fused_recurrent_kda alone")
    if allow_neg_eigval:
        _refuse("allow_neg_eigval", True, "beta is taken from 0 to 1")
    for name, x, axes in (("q", q, 4), ("k", k, 4), ("v", v, 4), ("g", g, 4), ("beta", beta, 3)):
        if len(x.shape) != axes:
            raise ValueError(f"{name}: {len(x.shape)} axes, expected {axes}")
        if getattr(x, "requires_grad", False):
            import torch

            if torch.is_grad_enabled():
                _refuse(name, "requires_grad", "there is no backward pass; call it under torch.no_grad()")
    if v.shape[2] != q.shape[2]:
        _refuse("v", f"{v.shape[2]} heads", f"q has {q.shape[2]}; grouped value attention repeats them first")


class _Call:
    """The arguments of one call as the operator takes them."""

    def __init__(self, q, k, v, g, beta, A_log, dt_bias, scale, initial_state, use_qk_l2norm_in_kernel, use_gate_in_kernel,
                 use_beta_sigmoid_in_kernel, lower_bound, state_v_first, cu_seqlens):
        lib = self.lib = _library(q)
        B, T, H, K = q.shape
        V = v.shape[-1]
        if cu_seqlens is None:
            self.cu = [T * b for b in range(B + 1)]
        elif B != 1:
            raise ValueError(f"q: a batch of {B} with cu_seqlens, expected 1")
        else:
            self.cu = [int(i) for i in cu_seqlens]
        N = self.N = len(self.cu) - 1
        if use_gate_in_kernel:
            if A_log is None and lower_bound is None:
                raise ValueError("A_log: missing, expected with use_gate_in_kernel and no lower_bound")
            a_log = lib.zeros(H) if A_log is None else lib.float32(A_log).reshape(H)
            bias = lib.zeros(H, K) if dt_bias is None else lib.float32(dt_bias).reshape(H, K)
            gate = lib.dense(g, B * T, H, K)
        else:
            if lower_bound is not None:
                raise ValueError("lower_bound: given without use_gate_in_kernel")
            a_log, bias, gate, lower_bound = lib.zeros(H), lib.zeros(H, K), lib.softplus_inverse(g).reshape(B * T, H, K), None
        self.state = lib.zeros(N + 1, H, V, K)  # slot 0 is nobody's
        if initial_state is not None:
            want = (N, H, V, K) if state_v_first else (N, H, K, V)
            if tuple(initial_state.shape) != want:
                raise ValueError(f"initial_state: shape {tuple(initial_state.shape)}, expected {want}")
            given = lib.float32(initial_state)
            self.state[1:] = given if state_v_first else lib.swap_last(given)
        self.fresh = initial_state is None
        self.state_v_first = state_v_first
        self.shape = tuple(v.shape)
        self.rows = dict(q=lib.dense(q, B * T, H, K), k=lib.dense(k, B * T, H, K), v=lib.dense(v, B * T, H, V), gate=gate,
                         beta=lib.dense(beta, B * T, H))
        self.fixed = dict(a_log=a_log, dt_bias=bias, gate_kind="softplus" if lower_bound is None else "bounded",
                          lower_bound=-5.0 if lower_bound is None else lower_bound, sigmoid_beta=use_beta_sigmoid_in_kernel,
                          l2_norm=use_qk_l2norm_in_kernel, scale=K**-0.5 if scale is None else scale, state=self.state)

    def run(self, rows: dict[str, Any], cu: list[int], slots: list[int], fresh: bool, prefill: bool) -> Any:
        lib, n = self.lib, len(slots)
        return ops.kda(**rows, **self.fixed, cu=lib.integers(cu), slot=lib.integers([[s] for s in slots]),
                       accepted=lib.integers([1] * n), fresh=lib.bytes([int(fresh)] * n), n_prefill=n if prefill else 0,
                       n_decode=0 if prefill else n, max_len=max((b - a for a, b in zip(cu, cu[1:])), default=0))

    def final_state(self) -> Any:
        states = self.state[1:]
        return states if self.state_v_first else self.lib.swap_last(states)


def chunk_kda(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,
              use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, safe_gate=False, lower_bound=None,
              disable_recompute=False, return_intermediate_states=False, state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None,
              cp_context=None, use_graph=False, max_num_seqs=None, A_log=None, dt_bias=None, **kwargs):
    """(o [B, T, H, V], final_state [N, H, K, V] or None) of packed or equal-length sequences, in chunks."""
    _check(q, k, v, g, beta, allow_neg_eigval, dict(return_intermediate_states=return_intermediate_states, cp_context=cp_context,
                                                    use_graph=use_graph, max_num_seqs=max_num_seqs, **kwargs))
    if safe_gate and use_gate_in_kernel and lower_bound is None:
        raise ValueError("lower_bound: missing, expected with safe_gate")
    c = _Call(q, k, v, g, beta, A_log, dt_bias, scale, initial_state, use_qk_l2norm_in_kernel, use_gate_in_kernel,
              use_beta_sigmoid_in_kernel, lower_bound, state_v_first, cu_seqlens if cu_seqlens_cpu is None else cu_seqlens_cpu)
    out = c.run(c.rows, c.cu, list(range(1, c.N + 1)), c.fresh, prefill=True)
    return out.reshape(c.shape), c.final_state() if output_final_state else None


def fused_recurrent_kda(q, k, v, g, beta, A_log=None, dt_bias=None, scale=None, initial_state=None, output_final_state=False,
                        use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False,
                        allow_neg_eigval=False, lower_bound=None, state_v_first=False, cu_seqlens=None, **kwargs):
    """The same by the recurrence, one token of every sequence after the other: what a decode step calls."""
    _check(q, k, v, g, beta, allow_neg_eigval, kwargs)
    c = _Call(q, k, v, g, beta, A_log, dt_bias, scale, initial_state, use_qk_l2norm_in_kernel, use_gate_in_kernel,
              use_beta_sigmoid_in_kernel, lower_bound, state_v_first, cu_seqlens)
    lengths = [b - a for a, b in zip(c.cu, c.cu[1:])]
    if all(n == 1 for n in lengths):
        out = c.run(c.rows, c.cu, list(range(1, c.N + 1)), c.fresh, prefill=False)
    else:
        out = ops._empty(c.rows["v"])
        for t in range(max(lengths, default=0)):
            live = [n for n in range(c.N) if lengths[n] > t]
            at = [c.cu[n] + t for n in live]
            rows = {name: x[at] for name, x in c.rows.items()}
            out[at] = c.run(rows, list(range(len(live) + 1)), [n + 1 for n in live], c.fresh and t == 0, prefill=False)
    return out.reshape(c.shape), c.final_state() if output_final_state else None
