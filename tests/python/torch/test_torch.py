"""With PyTorch, by hand (it is large): tests/python/check ... torch. Tensors over DLPack, flash-linear-attention's own naive
reference in all combinations of options, and the registered operators."""

import importlib.util
import itertools
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys

import pytest
import torch

torch.set_num_threads(1)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import gil
import kdelta.torch
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


def decode_call():
    T, H, K, V = 2, 2, 32, 48
    C = H * (2 * K + V)
    i32 = lambda *v: torch.tensor(v, dtype=torch.int32)
    return dict(qkv=torch.randn(T, C), conv_weight=torch.randn(4, C), decay=torch.randn(T, H, K), beta=torch.randn(T, H), a_log=torch.zeros(H),
                dt_bias=torch.zeros(H, K), gate=torch.randn(T, H, V).bfloat16(), norm_weight=torch.randn(V), state=torch.randn(3, H, V, K),
                window=torch.randn(3, 3, C), cu=i32(0, 1, 2), slot=i32(2, 1).view(2, 1), accepted=i32(1, 1),
                fresh=torch.zeros(2, dtype=torch.bool), n_decode=2, scale=0.2, norm_eps=1e-5)


def pages_call():
    i32 = lambda *v: torch.tensor(v, dtype=torch.int32)
    return dict(cu=i32(0, 5, 6), context_lengths=i32(0, 3), pages=i32(1, 2, 3, -1).view(2, 2), n_prefill=1, n_decode=1, max_len=5, max_context=5)


bytes_like = lambda *s: torch.randint(100, 130, s, dtype=torch.uint8)
CALLS = {
    "kda": kda_call,
    "kda_records": lambda: kda_call() | dict(cu=torch.tensor([0, 2], dtype=torch.int32), slot=torch.tensor([[1, 2, 2]], dtype=torch.int32),
                                             n_prefill=0, n_decode=1, max_len=2, records=torch.randn(3, 2, 2, 112)),
    "kda_softplus": lambda: kda_call() | dict(gate_kind="softplus", sigmoid_beta=False, l2_norm=False,
                                              snapshot=torch.tensor([[0, 5, 2]], dtype=torch.int32)),
    "kda_replay": lambda: dict(state=torch.randn(3, 2, 48, 32), records=torch.randn(3, 2, 2, 112), slot=torch.tensor([2], dtype=torch.int32),
                               accepted=torch.tensor([2], dtype=torch.int32)),
    "kda_decode": decode_call,
    "short_conv": lambda: dict(x=torch.randn(5, 12), weight=torch.randn(4, 12), state=torch.randn(3, 3, 12),
                               **{n: kda_call()[n] for n in ("cu", "slot", "accepted", "fresh", "n_prefill", "n_decode", "max_len")}),
    "gated_norm": lambda: dict(x=torch.randn(3, 2, 16), gate=torch.randn(3, 2, 16), weight=torch.randn(16)),
    "gated_norm_sum": lambda: dict(x=torch.randn(3, 2, 16), gate=torch.randn(3, 2, 16), bias=torch.randn(16), residual=torch.randn(3, 2, 16),
                                   sum_out=torch.empty(3, 2, 16), live=torch.tensor([2], dtype=torch.int32), silu=True),
    "attn_res": lambda: dict(blocks=torch.randn(3, 4, 16), n=2, sum=torch.randn(4, 16), score_weight=torch.randn(16), eps=1e-5),
    "attn_res_added": lambda: CALLS["attn_res"]() | dict(norm_weight=torch.randn(16), addend=torch.randn(4, 16), sum_out=torch.empty(4, 16)),
    "activation": lambda: dict(gate=torch.randn(3, 16), up=torch.randn(3, 16)),
    "activation_strided": lambda: dict(gate=torch.randn(3, 32)[:, :8], up=torch.randn(3, 16)[:, 8:], kind="swiglu"),
    "mx_quantize": lambda: dict(x=torch.randn(3, 64), codes=torch.empty(3, 64, dtype=torch.uint8), scale=torch.empty(3, 2, dtype=torch.uint8)),
    "mx_quantize_situ": lambda: dict(x=torch.randn(3, 128), codes=torch.zeros(3, 32, dtype=torch.uint8), scale=torch.zeros(3, 2, dtype=torch.uint8),
                                     format="f4_e2m1", rule="even", situ=True, beta=3.0, linear_beta=20.0, activate_left=False,
                                     group_counts=torch.tensor([1, 1])),
    "mx_dequantize": lambda: dict(codes=bytes_like(3, 64), scale=bytes_like(3, 2), out=torch.empty(3, 64), format="f8_e5m2"),
    "dequant_situ": lambda: dict(x=torch.randint(-99, 99, (3, 64), dtype=torch.int32), y=torch.empty(3, 32, dtype=torch.int8),
                                 weight_scale=torch.rand(64), activation_scale=torch.rand(3), scale=torch.empty(3)),
    "mla_append": lambda: dict(latent=torch.randn(6, 32), rope=torch.randn(6, 16), cache=torch.zeros(4, 16, 48), **pages_call()),
    "mla": lambda: dict(q=torch.randn(6, 2, 48), cache=torch.randn(4, 16, 48), kv_b=torch.randn(2 * 56, 32), out=torch.empty(6, 2, 24), nope=32,
                        rope=16, value=24, latent=32, scale=0.2, kv_b_scale=None, kv_b_format="plain", **pages_call()),
}


def make(name):
    """The operator of that call, and two sets of the same arguments."""
    operator = max((n for n in kdelta.torch.__all__ if name.startswith(n)), key=len)
    torch.manual_seed(3)
    first = CALLS[name]()
    return operator, first, {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in first.items()}


def same(got, want):
    return torch.equal(got.contiguous().view(torch.uint8), want.contiguous().view(torch.uint8))


def test_the_kernels_are_compiled_ones():
    assert kdelta.torch.implementation == "stable ABI"


@pytest.mark.parametrize("name", CALLS)
def test_an_operator_has_the_bits_of_kdelta_ops(name):
    operator, through, direct = make(name)
    untouched = {k: v.clone() for k, v in through.items() if isinstance(v, torch.Tensor)}
    got = getattr(torch.ops.kdelta, operator)(**through)
    want = getattr(ops, operator)(**direct)
    if got is not None:
        assert same(got, want)
    written = {a.name for a in getattr(torch.ops.kdelta, operator).default._schema.arguments if a.alias_info and a.alias_info.is_write}
    for key, value in untouched.items():
        assert same(through[key], direct[key]), key
        assert key in written or same(through[key], value), f"{key} was written, undeclared"
    if operator != "gated_norm":
        assert got is not None or any(not same(through[k], untouched[k]) for k in written if k in untouched)


@pytest.mark.parametrize("name", CALLS)
def test_opcheck_has_nothing_to_say(name):
    operator, arguments, _ = make(name)
    torch.library.opcheck(getattr(torch.ops.kdelta, operator).default, (), arguments)


@pytest.mark.parametrize("name", CALLS)
def test_a_compiled_graph_is_whole_and_writes_what_is_declared(name):
    operator, eager, compiled = make(name)
    op = getattr(torch.ops.kdelta, operator)
    want = op(**eager)
    torch._dynamo.reset()
    got = torch.compile(lambda a: op(**a), fullgraph=True, backend="aot_eager")(compiled)
    if want is not None:
        assert same(got, want)
    for key, value in eager.items():
        if isinstance(value, torch.Tensor):
            assert same(compiled[key], value), key


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles C++ with g++")
def test_inductor_compiles_a_step_around_it_whole(tmp_path, monkeypatch):
    """Operators of torch's before and behind, a mutated state, a new result; compiled anew, as nothing is cached."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def step(a):
        mixed = torch.ops.kdelta.short_conv(**a["conv"])
        out = torch.ops.kdelta.kda(**a["kda"] | dict(q=a["kda"]["q"] * 2))
        return torch.ops.kdelta.activation(out.flatten(1), out.flatten(1) + 1, "swiglu") + mixed.sum()

    calls = [dict(conv=make("short_conv")[1], kda=make("kda")[1]) for _ in range(2)]
    want = step(calls[0])
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(step, fullgraph=True)(calls[1]), want)
    for op in ("conv", "kda"):
        torch.testing.assert_close(calls[1][op]["state"], calls[0][op]["state"])


@pytest.mark.parametrize("change,message", [
    (dict(up=torch.zeros(2, 16)), "activation: up: shape"), (dict(up=torch.zeros(3, 16, dtype=torch.float64)), "activation: up: dtype"),
    (dict(up=torch.zeros(3, 16, dtype=torch.complex64)), "activation: up"), (dict(kind="none"), "activation: kind: 'none', expected one of"),
    (dict(beta=-1.0), "activation: beta"), (dict(up=torch.zeros(3, 32)[:, ::2]), "stride")])
def test_wrong_arguments_are_refused_by_name_and_given_back(change, message):
    arguments = CALLS["activation"]() | change
    with pytest.raises(ValueError, match=message):
        kdelta.torch.activation(**arguments)
    with pytest.raises((ValueError, RuntimeError), match=message):  # PyTorch's choice
        torch.ops.kdelta.activation(**arguments)
    arguments = CALLS["activation"]() | change
    try:
        kdelta.torch.activation(**arguments)
    except ValueError:
        pass
    assert arguments["gate"]._use_count() == 1


def test_a_count_beyond_32_bits_is_refused():
    with pytest.raises(ValueError, match="kda: n_decode: 4294967296, expected 32 bits"):
        kdelta.torch.kda(**(kda_call() | dict(n_decode=1 << 32)))


def test_an_exception_of_pytorchs_own_stays_what_it_is():
    with pytest.raises(ValueError):
        kdelta.torch.activation(torch.zeros(2, 3), torch.zeros(3, 3))
    with pytest.raises(RuntimeError, match="missing value for argument 'up'"):
        kdelta.torch.activation(torch.zeros(2, 3))


def test_the_functions_of_the_module_compile_whole_as_well():
    arguments = make("activation")[1]
    torch._dynamo.reset()
    got = torch.compile(lambda a: kdelta.torch.activation(**a), fullgraph=True, backend="aot_eager")(arguments)
    assert same(got, kdelta.torch.activation(**arguments))


def test_a_call_of_other_sizes_than_the_last_has_scratch_enough():
    for T in (5, 300, 5, 700, 300):
        torch.manual_seed(T)
        long = {n: torch.randn(T, *x.shape[1:]) for n, x in kda_call().items() if n in ("q", "k", "v", "gate", "beta")}
        arguments = kda_call() | long | dict(cu=torch.tensor([0, T], dtype=torch.int32), max_len=T)
        direct = arguments | dict(state=arguments["state"].clone())
        assert same(torch.ops.kdelta.kda(**arguments), ops.kda(**direct)) and same(arguments["state"], direct["state"])


def test_the_results_memory_is_freed():
    x = torch.zeros(1 << 20)[None]
    for _ in range(3000):  # 12 GB if they stayed
        torch.ops.kdelta.activation(x[:, : 1 << 20], x)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 3 << 20


def test_other_threads_run_while_an_operator_computes():
    T = 8000  # long enough for a thread to wake up
    long = {n: torch.randn(T, *x.shape[1:]) for n, x in kda_call().items() if n in ("q", "k", "v", "gate", "beta")}
    arguments = kda_call() | long | dict(cu=torch.tensor([0, T], dtype=torch.int32), max_len=T)
    assert gil.is_free_during(lambda: torch.ops.kdelta.kda(**arguments))


def test_the_child_of_a_fork_computes_the_same():
    arguments = CALLS["activation"]()
    want = torch.ops.kdelta.activation(**arguments)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if same(torch.ops.kdelta.activation(**arguments), want) else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_an_older_torch_gets_the_python_form_which_has_the_same_bits(tmp_path):
    torch.save({name: make(name)[1] for name in CALLS}, tmp_path / "arguments")
    code = """
import torch
torch.__version__ = torch.torch_version.TorchVersion("2.9.1")
import kdelta.torch
assert kdelta.torch.implementation == "python"
calls = torch.load("arguments")
for name, a in calls.items():
    operator = max((n for n in kdelta.torch.__all__ if name.startswith(n)), key=len)
    a["result"] = getattr(torch.ops.kdelta, operator)(**a)
torch.save(calls, "results")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name, got in torch.load(tmp_path / "results").items():
        operator, want, _ = make(name)
        want["result"] = getattr(torch.ops.kdelta, operator)(**want)
        for key, value in want.items():
            if isinstance(value, torch.Tensor):
                assert same(got[key], value), (name, key)


def test_the_interface_declared_by_hand_is_that_of_torchs_own_headers(tmp_path):
    """Both in one file: a type that differs is an error of the compiler's, a name that torch lacks one of the linker's."""
    source = pathlib.Path(__file__).resolve().parents[3] / "frontends/python/torch_abi.h"
    everywhere, _ = source.read_text().split('extern "C" {')[1].split("// Not of every PyTorch")
    names = re.findall(r"(\w+)\(", everywhere.replace("(*kernel)(", ""))
    folder = pathlib.Path(torch.__file__).parent
    (tmp_path / "both.cc").write_text(f"""
#define USE_CUDA 1
#include <torch/csrc/stable/c/shim.h>
#include "{source}"
const void* const all[] = {{{", ".join(f"reinterpret_cast<const void*>({n})" for n in names)}}};
int main() {{ return all[0] == nullptr; }}
""")
    assert len(names) > 25, names
    done = subprocess.run(["g++", "-std=c++20", "-I", folder / "include", "both.cc", "-o", "both", f"-L{folder}/lib", "-ltorch_cpu",
                           "-Wl,--unresolved-symbols=ignore-in-shared-libs"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
