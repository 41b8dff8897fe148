"""With PyTorch, by hand (it is large): tests/python/check ... torch. Tensors over DLPack, flash-linear-attention's own naive
reference in all combinations of options, and the registered operators."""

import importlib.util
import itertools
import pathlib
import time

import pytest
import torch

torch.set_num_threads(1)

import kdelta.torch  # noqa: F401, registers torch.ops.kdelta
from kdelta import ops
from kdelta.compat.fla import chunk_kda, fused_recurrent_kda


def naive():
    """naive_recurrent_kda of fla-core, without importing the package: that needs Triton."""
    package = importlib.util.find_spec("fla").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("fla_naive", pathlib.Path(package) / "ops/kda/naive.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.naive_recurrent_kda


def inputs(B, T, H=2, K=32, V=48, dtype=torch.float32):
    torch.manual_seed(B * T)
    normal = lambda *s: torch.randn(*s).to(dtype)
    return dict(q=normal(B, T, H, K), k=normal(B, T, H, K), v=normal(B, T, H, V), g=normal(B, T, H, K), beta=normal(B, T, H))


def close(got, want, bound):
    assert got.shape == want.shape
    assert (got.double() - want.double()).pow(2).mean().sqrt() <= bound * want.double().pow(2).mean().sqrt()


@pytest.mark.parametrize("call", [chunk_kda, fused_recurrent_kda])
@pytest.mark.parametrize("gate,sigmoid,l2,bounded", list(itertools.product([False, True], repeat=4)))
@pytest.mark.parametrize("dtype,bound", [(torch.float32, 2e-5), (torch.bfloat16, 8e-3)])
def test_fla_core_says_the_same(call, gate, sigmoid, l2, bounded, dtype, bound):
    if bounded and not gate:
        bounded = False  # a bound is of the gate's
    x = inputs(2, 70 if call is chunk_kda else 5, dtype=dtype)
    if not sigmoid:
        x["beta"] = x["beta"].sigmoid()
    if not l2:
        x["k"], x["q"] = x["k"] * 0.2, x["q"] * 0.2
    if not gate:
        x["g"] = -x["g"].abs()
    A_log, dt_bias = torch.randn(2) * 0.3, torch.randn(64)
    initial = torch.randn(2, 2, 32, 48)
    o, s = call(**x, scale=0.2, initial_state=initial, output_final_state=True, use_qk_l2norm_in_kernel=l2, use_gate_in_kernel=gate,
                use_beta_sigmoid_in_kernel=sigmoid, lower_bound=-5.0 if bounded else None,
                **(dict(A_log=A_log, dt_bias=dt_bias) if gate else {}))
    f = {n: a.double().float() for n, a in x.items()}
    if l2:
        for n in "qk":
            f[n] = f[n] / (f[n].pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()
    if gate:
        raw = f["g"] + dt_bias.view(2, 32)
        a = A_log.exp()[:, None]
        f["g"] = -5.0 * (a * raw).sigmoid() if bounded else -a * torch.nn.functional.softplus(raw)
    if sigmoid:
        f["beta"] = f["beta"].sigmoid()
    want_o, want_s = naive()(**f, scale=0.2, initial_state=initial, output_final_state=True)
    close(o, want_o, bound)
    close(s, want_s, bound)


def test_bf16_tensors_are_taken_without_a_copy_and_written_in_place():
    gate, up = torch.randn(5, 8).bfloat16(), torch.randn(5, 8).bfloat16()
    out = torch.empty_like(gate)
    address = out.data_ptr()
    assert ops.activation(gate, up, "swiglu", out=out) is out and out.data_ptr() == address
    close(out, torch.nn.functional.silu(gate.float()) * up.float(), 4e-3)


def test_gradients_are_refused_by_name():
    x = inputs(1, 4)
    x["v"].requires_grad_()
    with pytest.raises(NotImplementedError, match="v: .*requires_grad"):
        chunk_kda(**x, use_gate_in_kernel=True, lower_bound=-5.0)
    with torch.no_grad():
        chunk_kda(**x, use_gate_in_kernel=True, lower_bound=-5.0)


def kda_call():
    x = {n: a[0] for n, a in inputs(1, 5).items()}
    x["gate"] = x.pop("g")
    i32 = lambda *v: torch.tensor(v, dtype=torch.int32)
    return dict(**x, a_log=torch.zeros(2), dt_bias=torch.zeros(2, 32), state=torch.randn(3, 2, 48, 32), cu=i32(0, 5), slot=i32(1).view(1, 1),
                accepted=i32(1), fresh=torch.zeros(1, dtype=torch.uint8), n_prefill=1, n_decode=0, max_len=5, scale=0.2)


CALLS = {
    "kda": kda_call,
    "kda_replay": lambda: dict(state=torch.randn(3, 2, 48, 32), records=torch.randn(3, 2, 2, 112), slot=torch.tensor([2], dtype=torch.int32),
                               accepted=torch.tensor([2], dtype=torch.int32)),
    "short_conv": lambda: dict(x=torch.randn(5, 12), weight=torch.randn(4, 12), state=torch.randn(3, 3, 12),
                               **{n: kda_call()[n] for n in ("cu", "slot", "accepted", "fresh", "n_prefill", "n_decode", "max_len")}),
    "gated_norm": lambda: dict(x=torch.randn(3, 2, 16), gate=torch.randn(3, 2, 16), weight=torch.randn(16)),
    "attn_res": lambda: dict(blocks=torch.randn(3, 4, 16), n=2, sum=torch.randn(4, 16), score_weight=torch.randn(16), eps=1e-5),
    "activation": lambda: dict(gate=torch.randn(3, 16), up=torch.randn(3, 16)),
}


@pytest.mark.parametrize("name", CALLS)
def test_opcheck_has_nothing_to_say(name):
    torch.library.opcheck(getattr(torch.ops.kdelta, name).default, (), CALLS[name]())


@pytest.mark.parametrize("name", CALLS)
def test_a_compiled_graph_is_whole_and_writes_what_is_declared(name):
    op = getattr(torch.ops.kdelta, name)
    eager, compiled = CALLS[name](), CALLS[name]()
    for key, value in eager.items():
        if isinstance(value, torch.Tensor):
            compiled[key] = value.clone()
    want = op(**eager)
    got = torch.compile(lambda a: op(**a), fullgraph=True, backend="aot_eager")(compiled)
    if want is not None:
        assert torch.equal(got, want)
    for key, value in eager.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(compiled[key], value), key


def test_what_a_call_costs_is_printed(capsys):
    empty = torch.empty(0, 32)
    torch.ops.kdelta.activation(empty, empty, "swiglu")
    begin = time.process_time()
    for _ in range(5000):
        torch.ops.kdelta.activation(empty, empty, "swiglu")
    us = (time.process_time() - begin) / 5000 * 1e6
    with capsys.disabled():
        print(f"\ntorch.ops.kdelta.activation on no rows: {us:.1f} us")
    assert us < 100
