"""Kimi Delta Attention: the chunk form (16 tokens) used in training and the recurrence it is checked against.

Shapes: q, k, g [B, T, H, K]; v [B, T, H, V]; beta [B, T, H]. q and k arrive normalised, q scaled, g = log decay.
Both return the outputs [B, T, H, V] and the final state [B, H, K, V].
"""
import torch
import torch.nn.functional as F

CHUNK = 16


class LinearScan(torch.autograd.Function):
    """S[n+1] = P[n] S[n] + Q[n] from S[0] = 0, one product per chunk in either direction."""

    @staticmethod
    def forward(ctx, p, q):
        s = q.new_zeros((q.shape[0] + 1, *q.shape[1:]))
        for n in range(q.shape[0]):
            torch.baddbmm(q[n], p[n], s[n], out=s[n + 1])
        ctx.save_for_backward(p, s)
        return s

    @staticmethod
    def backward(ctx, grad):
        p, s = ctx.saved_tensors
        d = grad.clone()
        for n in reversed(range(p.shape[0])):
            d[n].baddbmm_(p[n].transpose(1, 2), d[n + 1])
        return d[1:] @ s[:-1].transpose(2, 3), d[1:]


def unit_lower_inverse(lower: torch.Tensor) -> torch.Tensor:
    """(I + L)^-1 for strictly lower L, by doubling block size: as stable as forward substitution, no power series."""
    size = lower.shape[-1]
    index = torch.arange(size, device=lower.device)
    inverse = torch.eye(size, device=lower.device, dtype=lower.dtype).expand_as(lower)
    half = 1
    with torch.no_grad():
        while half < size:
            same = (index[:, None] // (2 * half)) == (index[None, :] // (2 * half))
            below = (index[:, None] // half) > (index[None, :] // half)
            inverse = inverse - inverse @ (lower * (same & below)) @ inverse
            half *= 2
    return inverse - inverse @ (lower - lower.detach()) @ inverse  # adds zero; carries the gradient -X dL X


def chunk_terms(q, k, v, g, beta):
    """Everything that needs no state: the transition S -> P S + Q of each chunk, and the factors of its outputs."""
    pad = -q.shape[1] % CHUNK

    def chunks(x):  # [B, T, H, ...] -> [N, B*H, C, ...]
        x = F.pad(x, (0, 0, 0, 0, 0, pad))
        return x.unflatten(1, (-1, CHUNK)).permute(1, 0, 3, 2, 4).flatten(1, 2)

    q, k, v, g, beta = (chunks(x) for x in (q, k, v, g, beta.unsqueeze(-1)))
    total = g.cumsum(-2)
    anchored = total - total[..., :1, :]  # relative to the chunk's first row: never depends on later tokens
    k_in = (k * (-anchored).exp()).transpose(-1, -2)
    lower = (beta * ((k * anchored.exp()) @ k_in)).tril(-1)
    mix = ((q * anchored.exp()) @ k_in).tril()
    inverse = unit_lower_inverse(lower)

    decay, last = total.exp(), total[..., -1:, :]
    a = inverse @ (beta * v)
    w = inverse @ (beta * k * decay)
    k_out = (k * (last - total).exp()).transpose(-1, -2)
    return torch.diag_embed(last.exp().squeeze(-2)) - k_out @ w, k_out @ a, q * decay, mix, a, w


def kda_chunk(q, k, v, g, beta):
    batch, length, heads, _ = q.shape
    p, addend, q_in, mix, a, w = chunk_terms(q, k, v, g, beta)
    states = LinearScan.apply(p, addend)
    start = states[:-1]
    out = q_in @ start + mix @ (a - w @ start)
    out = out.unflatten(1, (batch, heads)).permute(1, 0, 3, 2, 4).flatten(1, 2)
    return out[:, :length], states[-1].unflatten(0, (batch, heads))


def kda_recurrent(q, k, v, g, beta):
    """Token by token, as the definition reads."""
    state = q.new_zeros((q.shape[0], q.shape[2], q.shape[3], v.shape[3]))
    outputs = []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp().unsqueeze(-1)
        read = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        u = beta[:, t].unsqueeze(-1) * (v[:, t] - read)
        state = state + k[:, t].unsqueeze(-1) * u.unsqueeze(-2)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, 1), state
