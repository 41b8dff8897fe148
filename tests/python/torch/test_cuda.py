"""Every door of Python on CUDA tensors: the bits of kdelta.ops through torch's operators, values against the CPU, streams, graphs,
devices. Skipped where there is no CUDA device, or kdelta was built without CUDA."""

import ctypes
import itertools

import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import cuda_device
import kdelta.torch
from kdelta import ops
from kdelta.compat.fla import chunk_kda, fused_recurrent_kda
from test_torch import CALLS, close, decode_call, inputs, kda_call, same


pytestmark = pytest.mark.skipif(bool(cuda_device.why_not()), reason=cuda_device.why_not() or "-")
bf16 = torch.bfloat16


def wide_kda(T=200, H=2, W=128):
    """Two sequences in bf16 with the widths that have kernels of their own."""
    i32 = lambda *v: torch.tensor(v, dtype=torch.int32)
    normal = lambda *s: torch.randn(*s).to(bf16)
    return dict(q=normal(T, H, W), k=normal(T, H, W), v=normal(T, H, W), gate=normal(T, H, W), beta=normal(T, H), a_log=torch.randn(H) * 0.3,
                dt_bias=torch.randn(H, W) * 0.3, state=torch.randn(3, H, W, W), cu=i32(0, T - 70, T), slot=i32(1, 2).view(2, 1), accepted=i32(1, 1),
                fresh=torch.tensor([1, 0], dtype=torch.uint8), n_prefill=2, n_decode=0, max_len=T, scale=W**-0.5)


def wide_decode(T=3, H=2, W=128):
    C = 3 * H * W
    i32 = lambda *v: torch.tensor(v, dtype=torch.int32)
    normal = lambda *s: torch.randn(*s).to(bf16)
    return dict(qkv=normal(T, C), conv_weight=torch.randn(4, C) * 0.5, decay=normal(T, H, W), beta=normal(T, H), a_log=torch.zeros(H),
                dt_bias=torch.zeros(H, W), gate=normal(T, H, W), norm_weight=torch.randn(W), state=torch.randn(4, H, W, W), window=normal(4, 3, C),
                cu=i32(0, 1, 2, 3), slot=i32(2, 1, 3).view(3, 1), accepted=i32(1, 1, 1), fresh=torch.tensor([0, 1, 0], dtype=torch.uint8),
                n_decode=3, scale=W**-0.5, norm_eps=1e-5)


def wide_mla():
    i32 = lambda *v: torch.tensor(v, dtype=torch.int32)
    normal = lambda *s: torch.randn(*s).to(bf16)
    return dict(q=normal(6, 4, 192), cache=normal(5, 64, 576), kv_b=normal(4 * 256, 512) * 0.05, out=torch.empty(6, 4, 128, dtype=bf16), nope=128,
                rope=64, value=128, latent=512, scale=0.07, kv_b_scale=None, kv_b_format="plain", cu=i32(0, 5, 6), context_lengths=i32(0, 70),
                pages=i32(1, -1, 2, 3).view(2, 2), n_prefill=1, n_decode=1, max_len=5, max_context=71)


HERE = {n: c for n, c in CALLS.items() if n != "kda_decode"} | {
    "kda_wide": wide_kda, "kda_decode_wide": wide_decode, "mla_wide": wide_mla,
    "mx_quantize_fp8": lambda: dict(x=torch.randn(3, 64), codes=torch.empty(3, 64, dtype=torch.float8_e4m3fn),
                                     scale=torch.empty(3, 2, dtype=torch.uint8))}


def make(name):
    operator = max((n for n in kdelta.torch.__all__ if name.startswith(n)), key=len)
    torch.manual_seed(3)
    return operator, HERE[name]()


def on_cuda(arguments, device="cuda"):
    return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}


def tensors(arguments):
    return {k: v for k, v in arguments.items() if isinstance(v, torch.Tensor)}


def copy(arguments):
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}


@pytest.mark.parametrize("name", HERE)
def test_an_operator_has_the_bits_of_kdelta_ops_and_writes_what_it_declares(name):
    operator, arguments = make(name)
    through, direct = on_cuda(arguments), on_cuda(arguments)
    got, want = getattr(torch.ops.kdelta, operator)(**through), getattr(ops, operator)(**direct)
    if got is not None:
        assert got.is_cuda and same(got, want)
    written = {a.name for a in getattr(torch.ops.kdelta, operator).default._schema.arguments if a.alias_info and a.alias_info.is_write}
    for key, value in tensors(arguments).items():
        assert same(through[key], direct[key]), key
        assert key in written or same(through[key].cpu(), value), f"{key} was written, undeclared"


@pytest.mark.parametrize("name", HERE)
def test_an_operator_says_what_the_cpu_says(name):
    operator, there = make(name)
    here = on_cuda(there)
    results = getattr(ops, operator)(**here), getattr(ops, operator)(**there)
    pairs = [(here[k], v) for k, v in tensors(there).items()] + ([results] if isinstance(results[1], torch.Tensor) else [])
    for got, want in pairs:
        got = got.cpu()
        if want.dtype in (torch.uint8, torch.int8, torch.float8_e4m3fn):  # codes, of which rounding may move a few by one
            assert (got.view(torch.uint8) != want.view(torch.uint8)).float().mean() <= 0.02
        elif want.dtype.is_floating_point:
            assert same(got.isnan(), want.isnan())  # codes may be
            got, want = got.nan_to_num(0), want.nan_to_num(0)
            close(got, want, 1e-4 if want.dtype == torch.float32 and "wide" not in name else 8e-3)
        else:
            assert same(got, want)


@pytest.mark.parametrize("name", HERE)
def test_opcheck_has_nothing_to_say(name):
    operator, arguments = make(name)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    if any(v.dtype == torch.float8_e4m3fn for v in tensors(arguments).values()):
        tests = tests[1:]  # the first multiplies tensors, which torch cannot with these
    torch.library.opcheck(getattr(torch.ops.kdelta, operator).default, (), on_cuda(arguments), test_utils=tests)


@pytest.mark.parametrize("name", HERE)
def test_a_compiled_graph_is_whole(name):
    operator, arguments = make(name)
    eager, compiled = on_cuda(arguments), on_cuda(arguments)
    op = getattr(torch.ops.kdelta, operator)
    want = op(**eager)
    torch._dynamo.reset()
    got = torch.compile(lambda a: op(**a), fullgraph=True, backend="aot_eager")(compiled)
    assert want is None or same(got, want)
    for key, value in tensors(eager).items():
        assert same(compiled[key], value), key


@pytest.mark.parametrize("form", ["torch.ops", "kdelta.ops"])
@pytest.mark.parametrize("name", HERE)
def test_a_recorded_graph_replays_on_new_inputs(name, form):
    operator, arguments = make(name)
    call = getattr(torch.ops.kdelta if form == "torch.ops" else ops, operator)
    still, eager = on_cuda(arguments), on_cuda(arguments)
    call(**on_cuda(arguments))  # kernels are loaded when first used
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = call(**still)
    for key, value in tensors(arguments).items():  # recording ran nothing
        assert same(still[key].cpu(), value), key
    torch.manual_seed(9)
    for key, value in tensors(eager).items():
        if value.dtype in (torch.float32, bf16) and key not in ("conv_weight", "a_log"):
            value.copy_(torch.randn_like(value))
            still[key].copy_(value)
    want = call(**eager)
    graph.replay()
    if isinstance(want, torch.Tensor):
        assert same(got, want)
    for key, value in tensors(eager).items():
        assert same(still[key], value), key


class Speaks:
    """A CUDA array of a library that has __dlpack__ alone."""

    def __init__(self, tensor):
        self.tensor, self.shape, self.device = tensor, tensor.shape, tensor.device

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize("through", ["torch.ops", "kdelta.ops", "__dlpack__"])
def test_work_follows_its_producer_in_the_current_stream_without_a_wait(through):
    _, arguments = make("kda_wide")
    late = {"torch.ops": torch.ops.kdelta.kda, "kdelta.ops": ops.kda}.get(through)
    if late is None:
        late = lambda **a: ops.kda(**{k: Speaks(v) if isinstance(v, torch.Tensor) and k != "v" else v for k, v in a.items()})
    want_state = on_cuda(arguments)
    want = ops.kda(**want_state)
    ready = on_cuda(arguments)
    poisoned = ready | dict(q=torch.full_like(ready["q"], float("nan")), state=torch.full_like(ready["state"], float("nan")))
    late(**copy(poisoned))
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # some 100 ms
        poisoned["q"].copy_(ready["q"])
        poisoned["state"].copy_(ready["state"])
        got = late(**poisoned)
        assert not side.query(), "the call waited, or the producer was not late"
        followed = got.clone()
    side.synchronize()
    assert same(followed, want) and same(poisoned["state"], want_state["state"])


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("form", ["kdelta.torch", "kdelta.ops"])
def test_an_argument_that_lies_elsewhere_is_refused_by_name(name, form):
    operator, arguments = make(name)
    call = getattr(kdelta.torch if form == "kdelta.torch" else ops, operator)
    first = "sum" if operator == "attn_res" else next(iter(tensors(arguments)))
    for key in tensors(arguments):
        if key == first and form == "kdelta.ops":
            continue  # which says where the call is
        here = on_cuda(arguments)
        before = {k: v.clone() for k, v in tensors(here).items()}
        with pytest.raises(ValueError, match=rf"{operator}: {key.replace('context_lengths', 'context')}: on the CPU, expected cuda:0"):
            call(**here | {key: arguments[key]})
        assert all(same(here[k], v) for k, v in before.items())


def test_pinned_memory_is_the_cpus():
    gate, up = torch.randn(3, 8).pin_memory(), torch.randn(3, 8)
    assert same(ops.activation(gate, up), ops.activation(gate.clone(), up))
    with pytest.raises(ValueError, match="activation: up: on the CPU"):
        ops.activation(gate.cuda(), up.pin_memory())


@pytest.mark.parametrize("change,message", [
    (dict(up=(2, 16)), "activation: up: shape"), (dict(up=torch.float64), "activation: up: dtype"), (dict(beta=-1.0), "activation: beta"),
    (dict(kind="none"), "activation: kind")])
@pytest.mark.parametrize("op", [kdelta.torch.activation, ops.activation])
def test_wrong_arguments_are_refused_as_on_the_cpu(op, change, message):
    arguments = on_cuda(CALLS["activation"]())
    for key, value in change.items():
        arguments[key] = (torch.zeros(value, device="cuda") if isinstance(value, tuple)
                          else arguments[key].to(value) if isinstance(value, torch.dtype) else value)
    with pytest.raises(ValueError, match=message):
        op(**arguments)


def test_what_no_kernel_takes_is_refused_in_words():
    arguments = on_cuda(decode_call())
    with pytest.raises(NotImplementedError, match="kda_decode"):
        ops.kda_decode(**arguments)
    with pytest.raises(NotImplementedError, match="kda_decode"):
        kdelta.torch.kda_decode(**arguments)


class ReadOnly(Speaks):
    def __dlpack__(self, **options):
        capsule = self.tensor.__dlpack__(**options)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        ctypes.c_uint64.from_address(pointer(capsule, b"dltensor_versioned") + 24).value |= 1
        return capsule


def test_what_is_read_only_may_be_read_and_not_written():
    gate, up = torch.randn(3, 8, device="cuda"), torch.randn(3, 8, device="cuda")
    want, out = ops.activation(gate, up), torch.empty_like(gate)
    assert same(ops.activation(gate, ReadOnly(up), out=out), want)
    with pytest.raises(ValueError, match="activation: out: read-only"):
        ops.activation(gate, up, out=ReadOnly(out))


class Old(Speaks):
    """Speaks DLPack as before 1.0."""

    def __dlpack__(self, stream=None):
        return self.tensor.__dlpack__(stream=stream)


def test_both_generations_of_capsules_are_taken():
    gate, up = torch.randn(3, 8, device="cuda"), torch.randn(3, 8, device="cuda")
    want, out = ops.activation(gate, up), torch.empty_like(gate)
    ops.activation(gate, Old(up), out=Old(out))
    assert same(out, want)


@pytest.mark.parametrize("library", ["cupy", "jax"])
def test_arrays_of_other_libraries_are_taken(library):
    module = pytest.importorskip(library)
    gate, up = torch.randn(3, 8), torch.randn(3, 8)
    want, out = ops.activation(gate.cuda(), up.cuda()), torch.empty(3, 8, device="cuda")
    if library == "jax" and module.default_backend() != "gpu":
        pytest.skip("jax has no GPU here")
    put = module.asarray if library == "cupy" else module.numpy.asarray
    ops.activation(put(gate.numpy()), put(up.numpy()), out=out)
    assert same(out, want)


def test_a_caller_may_give_its_own_stream_scratch_and_fault_word():
    context = ops.Context("cuda")
    _, arguments = make("kda_wide")
    want_arguments, here = on_cuda(arguments), on_cuda(arguments)
    want = ops.kda(**want_arguments)
    out, faults = torch.zeros_like(want), torch.zeros(1, dtype=torch.int32, device="cuda")
    names = dict(gate_kind=1, lower_bound=-5.0)
    given = here | names | dict(out=out)
    scratch = torch.empty(context.workspace("kda", given), dtype=torch.uint8, device="cuda")
    side = torch.cuda.Stream()
    context.run("kda", given, side.cuda_stream, scratch, faults)
    side.synchronize()
    assert same(out, want) and same(here["state"], want_arguments["state"]) and faults.item() == 0
    before = here["state"].clone()
    wrong = given | dict(slot=torch.tensor([[1], [99]], dtype=torch.int32, device="cuda"))
    context.run("kda", wrong, side.cuda_stream, scratch, faults)
    side.synchronize()
    assert faults.item() == 1 << 3  # a slot that is none
    assert same(here["state"][2], before[2]) and not out[-70:].any()
    with pytest.raises(ValueError, match="kda: workspace: "):
        context.run("kda", given, side.cuda_stream, scratch[:16] if len(scratch) else None)


def test_scratch_of_larger_and_smaller_calls_is_enough():
    for T in (5, 300, 5, 1500, 300):
        torch.manual_seed(T)
        arguments = on_cuda(wide_kda(T + 71))
        direct = copy(arguments)
        assert same(torch.ops.kdelta.kda(**arguments), ops.kda(**direct)) and same(arguments["state"], direct["state"])


def test_results_and_scratch_are_freed():
    _, arguments = make("kda_wide")
    here = on_cuda(arguments)
    torch.ops.kdelta.kda(**here), ops.kda(**here)
    before = torch.cuda.memory_allocated()
    for _ in range(50):
        torch.ops.kdelta.kda(**here), ops.kda(**here)
    assert torch.cuda.memory_allocated() == before


def test_the_current_device_stays():
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device")
    for op in (kdelta.torch.kda, ops.kda):
        _, arguments = make("kda_wide")
        first, second = on_cuda(arguments), on_cuda(arguments, "cuda:1")
        want = op(**first)
        got = op(**second)
        assert torch.cuda.current_device() == 0 and got.get_device() == 1
        assert same(got.cpu(), want.cpu()) and same(second["state"].cpu(), first["state"].cpu())
        with pytest.raises(ValueError, match="kda: k: on cuda:1, expected cuda:0"):
            op(**first | dict(k=second["k"]))


def recurrence(q, k, v, g, beta, scale, state):
    """[B, T, H, ...] of q and k normed, log decay g, in float64; state [B, H, K, V]."""
    out = torch.empty(v.shape, dtype=torch.float64, device=v.device)
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None]
        u = beta[:, t][..., None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + k[:, t][..., None] * u[:, :, None]
        out[:, t] = torch.einsum("bhkv,bhk->bhv", state, q[:, t]) * scale
    return out, state


@pytest.mark.parametrize("call", [chunk_kda, fused_recurrent_kda])
@pytest.mark.parametrize("gate,sigmoid,l2,bounded", [c for c in itertools.product([False, True], repeat=4) if c[0] or not c[3]])
@pytest.mark.parametrize("dtype,width,bound", [(torch.float32, 32, 1e-4), (bf16, 128, 1e-2)])
def test_flash_linear_attentions_calls_say_what_a_recurrence_says(call, gate, sigmoid, l2, bounded, dtype, width, bound):
    x = {n: a.cuda() for n, a in inputs(2, 70 if call is chunk_kda else 5, K=width, V=width, dtype=dtype).items()}
    if not sigmoid:
        x["beta"] = x["beta"].sigmoid()
    if not l2:
        x["k"], x["q"] = (x[n] * (0.2 if width == 32 else 0.08) for n in "kq")
    if not gate:
        x["g"] = -x["g"].abs()
    A_log, dt_bias = torch.randn(2, device="cuda") * 0.3, torch.randn(2 * width, device="cuda")
    initial = torch.randn(2, 2, width, width, device="cuda")
    o, s = call(**x, scale=0.2, initial_state=initial, output_final_state=True, use_qk_l2norm_in_kernel=l2, use_gate_in_kernel=gate,
                use_beta_sigmoid_in_kernel=sigmoid, lower_bound=-5.0 if bounded else None,
                **(dict(A_log=A_log, dt_bias=dt_bias) if gate else {}))
    f = {n: a.double() for n, a in x.items()}
    if l2:
        for n in "qk":
            f[n] = f[n] / (f[n].pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()
    if gate:
        raw = f["g"] + dt_bias.view(2, width)
        a = A_log.double().exp()[:, None]
        f["g"] = -5.0 * (a * raw).sigmoid() if bounded else -a * torch.nn.functional.softplus(raw)
    if sigmoid:
        f["beta"] = f["beta"].sigmoid()
    want_o, want_s = recurrence(**f, scale=0.2, state=initial.double())
    assert o.is_cuda and o.dtype == dtype and s.dtype == torch.float32
    close(o, want_o, bound)
    close(s, want_s, bound)


def test_inductor_compiles_it_whole():
    pytest.importorskip("triton")
    _, arguments = make("kda_wide")
    eager, compiled = on_cuda(arguments), on_cuda(arguments)
    step = lambda a: torch.ops.kdelta.kda(**a | dict(q=a["q"] * 2)).float() + 1
    want = step(eager)
    torch._dynamo.reset()
    got = torch.compile(step, fullgraph=True)(compiled)
    close(got, want, 1e-2)
    close(compiled["state"], eager["state"], 1e-3)
