"""Kimi K3's text model in PyTorch, written from the architecture description alone: training and second opinion.

Module and parameter names are the checkpoint's, except that a layer's experts are stacked: w1, w2, w3 [E, out, in].
Everything runs in the parameters' type, unless Model.product_type says otherwise (bfloat16 in training): then the
large matrix products take and give that type, while norms, gates, router, softmax and recurrence stay as they are.
"""
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from kda import kda_chunk
from mxfp4 import fake_quantise
from torch import nn

LORA_NORM_EPS = 1e-6  # q_a and kv_a norms: the vendor's class default, not the config's value
L2_EPS = 1e-6


class Config:
    """text_config of a K3 config.json, as attributes."""

    def __init__(self, folder: Path):
        text = json.loads((Path(folder) / "config.json").read_text())["text_config"]
        self.__dict__.update(text)
        self.linear = text["linear_attn_config"]

    def is_kda(self, layer: int) -> bool:
        return layer + 1 in self.linear["kda_layers"]

    def is_moe(self, layer: int) -> bool:
        return layer >= self.first_k_dense_replace


class Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x):
        return product(x, self.weight)


def product(x, weight):
    return F.linear(x, weight.to(x.dtype))


def for_products(x):
    return x if Model.product_type is None else x.to(Model.product_type)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x, weight, eps: float):
    x = x.to(weight.dtype)
    return weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def situ(gate, up, beta: float, linear_beta: float, inner: torch.dtype):
    g, u = gate.to(inner), up.to(inner)
    return (beta * torch.tanh(g / beta) * torch.sigmoid(g) * linear_beta * torch.tanh(u / linear_beta)).to(gate.dtype)


def weighted_situ(gate, up, routing, beta: float, linear_beta: float):
    """SiTU of every expert's hidden values [..., E*F] times the token's weight for that expert [..., E]."""
    h = situ(gate.to(routing.dtype), up.to(routing.dtype), beta, linear_beta, routing.dtype)
    return (h.unflatten(-1, (routing.shape[-1], -1)) * routing.unsqueeze(-1)).flatten(-2).to(gate.dtype)


def output_gate(x, gate, inner: torch.dtype):
    return (x.to(inner) * torch.sigmoid(gate.to(inner))).to(gate.dtype)


def causal_probabilities(score, scale: float, inner: torch.dtype):
    future = torch.ones(score.shape[-2:], dtype=torch.bool, device=score.device).triu(1)
    return (score.to(inner) * scale).masked_fill(future, float("-inf")).softmax(-1).to(score.dtype)


def residual_mix(blocks: list, norm_weight, proj_weight, eps: float):
    """Per token: softmax over the candidates' normed projections, then the average of the raw candidates."""
    v = torch.stack(blocks)
    score = (v * (norm_weight * proj_weight)).sum(-1) * torch.rsqrt(v.square().mean(-1) + eps)
    return (score.softmax(0).unsqueeze(-1) * v).sum(0)


def short_conv(x, weight):
    """Causal depthwise convolution over 4 tokens, tap 3 on the current one, then SiLU. x [B, T, P], weight [P, 1, 4]."""
    padded = F.pad(x.to(weight.dtype), (0, 0, 3, 0))
    return F.silu(sum(padded[:, i:i + x.shape[1]] * weight[:, 0, i] for i in range(4)))


def kda_inputs(raw: list, conv_weights: list, decay, beta, dt_bias, a_log, lower_bound: float):
    """q, k, v, log decay and beta per head, from the outputs of the projections."""
    heads = a_log.shape[0]
    q, k, v = (short_conv(r, w).unflatten(-1, (heads, -1)) for r, w in zip(raw, conv_weights))
    q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + L2_EPS) * q.shape[-1]**-0.5
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + L2_EPS)
    z = (decay.to(dt_bias.dtype) + dt_bias).unflatten(-1, (heads, -1))
    g = lower_bound * torch.sigmoid(a_log.exp().unsqueeze(-1) * z)
    return q, k, v, g, torch.sigmoid(beta.to(dt_bias.dtype))


class Conv(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, 4))


class KDA(nn.Module):
    core = staticmethod(kda_chunk)

    def __init__(self, c: Config):
        super().__init__()
        self.heads, self.dim = c.linear["num_heads"], c.linear["head_dim"]
        self.lower_bound, self.eps = c.linear["gate_lower_bound"], c.rms_norm_eps
        width = self.heads * self.dim
        for name in ("q", "k", "v"):
            setattr(self, f"{name}_proj", Linear(c.hidden_size, width))
            setattr(self, f"{name}_conv1d", Conv(width))
        self.A_log = nn.Parameter(torch.zeros(self.heads))
        self.dt_bias = nn.Parameter(torch.zeros(width))
        self.f_a_proj = Linear(c.hidden_size, self.dim)
        self.f_b_proj = Linear(self.dim, width)
        self.b_proj = Linear(c.hidden_size, self.heads)
        self.g_proj = Linear(c.hidden_size, width)
        self.o_norm = RMSNorm(self.dim, c.rms_norm_eps)
        self.o_proj = Linear(width, c.hidden_size)

    def forward(self, x, trace):
        x = for_products(x)
        raw = [proj(x) for proj in (self.q_proj, self.k_proj, self.v_proj)]
        convs = [conv.weight for conv in (self.q_conv1d, self.k_conv1d, self.v_conv1d)]
        q, k, v, g, beta = kda_inputs(raw, convs, self.f_b_proj(self.f_a_proj(x)), self.b_proj(x), self.dt_bias,
                                      self.A_log, self.lower_bound)
        out, state = self.core(q, k, v, g, beta)
        if trace is not None:
            trace.setdefault("kda_state", []).append(state)
            trace.setdefault("conv_inputs", []).append(raw)
        return self.o_proj(output_gate(self.o_norm(out).flatten(-2), self.g_proj(x), out.dtype))


class MLA(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c, self.heads = c, c.num_attention_heads
        key = c.qk_nope_head_dim + c.qk_rope_head_dim
        self.q_a_proj = Linear(c.hidden_size, c.q_lora_rank)
        self.q_a_layernorm = RMSNorm(c.q_lora_rank, LORA_NORM_EPS)
        self.q_b_proj = Linear(c.q_lora_rank, self.heads * key)
        self.kv_a_proj_with_mqa = Linear(c.hidden_size, c.kv_lora_rank + c.qk_rope_head_dim)
        self.kv_a_layernorm = RMSNorm(c.kv_lora_rank, LORA_NORM_EPS)
        self.kv_b_proj = Linear(c.kv_lora_rank, self.heads * (c.qk_nope_head_dim + c.v_head_dim))
        self.g_proj = Linear(c.hidden_size, self.heads * c.v_head_dim)
        self.o_proj = Linear(self.heads * c.v_head_dim, c.hidden_size)

    def forward(self, x, trace):
        c, kind, x = self.c, x.dtype, for_products(x)
        q = self.q_b_proj(for_products(self.q_a_layernorm(self.q_a_proj(x)))).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        latent, shared = self.kv_a_proj_with_mqa(x).split([c.kv_lora_rank, c.qk_rope_head_dim], -1)
        kv = self.kv_b_proj(for_products(self.kv_a_layernorm(latent))).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = kv.split([c.qk_nope_head_dim, c.v_head_dim], -1)
        k = torch.cat([k, shared.unsqueeze(1).expand(-1, self.heads, -1, -1)], -1)  # never rotated
        out = causal_probabilities(q @ k.transpose(-1, -2), q.shape[-1]**-0.5, kind) @ v
        return self.o_proj(output_gate(out.transpose(1, 2).flatten(-2), self.g_proj(x), kind))


class MLP(nn.Module):
    def __init__(self, c: Config, width: int):
        super().__init__()
        self.betas = (c.activation_situ_beta, c.activation_situ_linear_beta)
        self.gate_proj = Linear(c.hidden_size, width)
        self.up_proj = Linear(c.hidden_size, width)
        self.down_proj = Linear(width, c.hidden_size)

    def forward(self, x, trace):
        kind, x = x.dtype, for_products(x)
        return self.down_proj(situ(self.gate_proj(x), self.up_proj(x), *self.betas, kind))


class Gate(nn.Module):
    """Sigmoid router; the bias takes part in the choice only."""

    def __init__(self, c: Config):
        super().__init__()
        self.top, self.scaling = c.num_experts_per_token, c.routed_scaling_factor
        self.weight = nn.Parameter(torch.empty(c.num_experts, c.hidden_size))
        self.e_score_correction_bias = nn.Parameter(torch.zeros(c.num_experts), requires_grad=False)

    def forward(self, x, trace):
        score = torch.sigmoid(F.linear(x, self.weight))
        best = (score + self.e_score_correction_bias).topk(self.top + 1, -1)
        index = best.indices[..., :self.top]
        weight = score.gather(-1, index)
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * self.scaling
        if trace is not None:
            trace.setdefault("router_idx", []).append(index)
            trace.setdefault("router_weight", []).append(weight)
            trace.setdefault("router_margin", []).append(best.values[..., -2] - best.values[..., -1])
        return torch.zeros_like(score).scatter(-1, index, weight)


class Experts(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        experts, latent, width = c.num_experts, c.routed_expert_hidden_size, c.moe_intermediate_size
        self.w1 = nn.Parameter(torch.empty(experts, width, latent))
        self.w2 = nn.Parameter(torch.empty(experts, latent, width))
        self.w3 = nn.Parameter(torch.empty(experts, width, latent))


class LatentMoE(nn.Module):
    quantise = False  # in training: the weights the export will hold

    def __init__(self, c: Config):
        super().__init__()
        self.betas = (c.activation_situ_beta, c.activation_situ_linear_beta)
        self.gate = Gate(c)
        self.experts = Experts(c)
        self.routed_expert_down_proj = Linear(c.hidden_size, c.routed_expert_hidden_size)
        self.routed_expert_norm = RMSNorm(c.routed_expert_hidden_size, c.rms_norm_eps)
        self.routed_expert_up_proj = Linear(c.routed_expert_hidden_size, c.hidden_size)
        self.shared_experts = MLP(c, c.num_shared_experts * c.moe_intermediate_size)

    def forward(self, x, trace):
        """All experts run on all tokens and the weights of the unchosen are zero: simple, and fast at this size."""
        routing = self.gate(x, trace)
        self.load = routing.detach().ne(0).to(x.dtype).mean((0, 1))
        w1, w2, w3 = ((fake_quantise(w) if self.quantise else w)
                      for w in (self.experts.w1, self.experts.w2, self.experts.w3))
        z = self.routed_expert_down_proj(for_products(x))
        h = weighted_situ(product(z, w1.flatten(0, 1)), product(z, w3.flatten(0, 1)), routing, *self.betas)
        y = self.routed_expert_norm(product(h, w2.transpose(0, 1).flatten(1)))
        return self.routed_expert_up_proj(for_products(y)) + self.shared_experts(x, None)


class Layer(nn.Module):
    def __init__(self, c: Config, index: int):
        super().__init__()
        self.eps = c.rms_norm_eps
        self.restart = index % c.attn_res_block_size == 0
        for name in ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm"):
            setattr(self, name, RMSNorm(c.hidden_size, c.rms_norm_eps))
        self.self_attention_res_proj = Linear(c.hidden_size, 1)
        self.self_attn = KDA(c) if c.is_kda(index) else MLA(c)
        self.mlp_res_proj = Linear(c.hidden_size, 1)
        self.ffn_name = "block_sparse_moe" if c.is_moe(index) else "mlp"
        setattr(self, self.ffn_name, LatentMoE(c) if c.is_moe(index) else MLP(c, c.intermediate_size))

    def forward(self, total, blocks, dropout, trace):
        h = total
        if blocks:
            h = residual_mix([*blocks, total], self.self_attention_res_norm.weight,
                             self.self_attention_res_proj.weight[0], self.eps)
        if self.restart:
            blocks = [*blocks, total]
        attention = dropout(self.self_attn(self.input_layernorm(h), trace)).to(total.dtype)
        total = attention if self.restart else total + attention
        h = residual_mix([*blocks, total], self.mlp_res_norm.weight, self.mlp_res_proj.weight[0], self.eps)
        return total + dropout(getattr(self, self.ffn_name)(self.post_attention_layernorm(h), trace)), blocks


class Inner(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c.num_hidden_layers))
        self.output_attn_res_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.output_attn_res_proj = Linear(c.hidden_size, 1)
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)


class Model(nn.Module):
    product_type: torch.dtype | None = None

    def __init__(self, c: Config, dropout: float = 0.0):
        super().__init__()
        self.c = c
        self.model = Inner(c)
        self.lm_head = Linear(c.hidden_size, c.vocab_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens, trace: dict | None = None):
        """Logits [B, T, vocab]. `trace` collects what the golden files record."""
        m = self.model
        total, blocks = self.dropout(m.embed_tokens(tokens)), []
        for layer in m.layers:
            total, blocks = layer(total, blocks, self.dropout, trace)
            if trace is not None:
                trace.setdefault("layer_out", []).append(total)
        h = residual_mix([*blocks, total], m.output_attn_res_norm.weight, m.output_attn_res_proj.weight[0],
                         self.c.rms_norm_eps)
        return self.lm_head(for_products(m.norm(h)))
