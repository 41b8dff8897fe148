"""The operators on numpy arrays: every door's rules, and values against a recurrence of numpy's own."""

import ast
import pathlib
import threading

import gil
import ml_dtypes
import numpy as np
import pytest

import kdelta
from kdelta import ops

bf16 = ml_dtypes.bfloat16
rng = np.random.default_rng(3)


def normal(*shape, dtype=np.float32):
    return rng.normal(size=shape).astype(np.float32).astype(dtype)


def sequences(lengths, slots, fresh, prefill):
    n = len(lengths)
    return dict(cu=np.cumsum([0, *lengths], dtype=np.int32), slot=np.array(slots, np.int32).reshape(n, 1),
                accepted=np.ones(n, np.int32), fresh=np.full(n, int(fresh), np.uint8), n_prefill=n if prefill else 0,
                n_decode=0 if prefill else n)


def kda_inputs(T, H=2, K=32, V=48, dtype=np.float32):
    return dict(q=normal(T, H, K, dtype=dtype), k=normal(T, H, K, dtype=dtype), v=normal(T, H, V, dtype=dtype),
                gate=normal(T, H, K), beta=normal(T, H, dtype=dtype), a_log=normal(H) * 0.3, dt_bias=normal(H, K) * 0.3)


def recurrence(x, state):
    """Token by token in float64; state [H, V, K] changes."""
    f = {name: np.asarray(a, np.float64) for name, a in x.items()}
    out = []
    for t in range(f["q"].shape[0]):
        q, k = (f[n][t] / np.sqrt((f[n][t] ** 2).sum(-1, keepdims=True) + 1e-6) for n in "qk")
        decay = np.exp(-5 / (1 + np.exp(-np.exp(f["a_log"])[:, None] * (f["gate"][t] + f["dt_bias"]))))
        beta = 1 / (1 + np.exp(-f["beta"][t]))
        state *= decay[:, None, :]
        u = beta[:, None] * (f["v"][t] - np.einsum("hvk,hk->hv", state, k))
        state += u[:, :, None] * k[:, None, :]
        out.append(np.einsum("hvk,hk->hv", state, q) * q.shape[-1] ** -0.5)
    return np.array(out)


@pytest.mark.parametrize("dtype,bound", [(np.float32, 1e-5), (bf16, 8e-3)])
def test_kda_in_chunks_is_the_recurrence(dtype, bound):
    x = kda_inputs(70, dtype=dtype)
    state = np.full((3, 2, 48, 32), np.nan, np.float32)
    out = ops.kda(**x, state=state, **sequences([70], [2], True, True))
    want_state = np.zeros((2, 48, 32))
    want = recurrence(x, want_state)
    assert np.abs(out.astype(np.float64) - want).max() < bound * np.abs(want).max() * 3
    assert np.abs(state[2] - want_state).max() < bound * 3
    assert np.isnan(state[:2]).all()  # nobody else's slot


def test_a_step_after_a_prefill_goes_on():
    x = kda_inputs(65)
    state = np.zeros((2, 2, 48, 32), np.float32)
    whole = recurrence(x, np.zeros((2, 48, 32)))
    head = {n: a if n in ("a_log", "dt_bias") else a[:64] for n, a in x.items()}
    tail = {n: a if n in ("a_log", "dt_bias") else a[64:] for n, a in x.items()}
    ops.kda(**head, state=state, **sequences([64], [1], True, True))
    step = ops.kda(**tail, state=state, **sequences([1], [1], False, False))
    assert np.abs(step[0] - whole[64]).max() < 1e-5


def test_results_have_the_bits_of_any_number_of_threads():
    x = kda_inputs(130, dtype=bf16)
    outs = []
    for threads in (1, 2):
        state = np.zeros((2, 2, 48, 32), np.float32)
        out = ops.kda(**x, state=state, **sequences([130], [1], True, True), context=ops.Context(threads=threads))
        outs.append((out.tobytes(), state.tobytes()))
    assert outs[0] == outs[1]


def test_short_conv_merged_and_split_are_the_sum_of_taps():
    x, weight = normal(7, 12), normal(4, 12)
    make = lambda: dict(state=np.zeros((2, 3, 12), np.float32), silu=False, **sequences([7], [1], True, True))
    merged = ops.short_conv(x, weight, **make())
    padded = np.concatenate([np.zeros((3, 12), np.float32), x])
    want = sum(weight[j] * padded[j : j + 7] for j in range(4))
    np.testing.assert_allclose(merged, want, rtol=1e-5, atol=1e-6)
    parts = tuple(np.empty((7, 4), np.float32) for _ in range(3))
    ops.short_conv(x, weight, split=parts, **make())
    assert np.concatenate(parts, 1).tobytes() == merged.tobytes()


def test_a_decode_step_is_its_three_operators():
    T, H, K, V = 3, 2, 32, 48
    C, P = H * (2 * K + V), H * K
    qkv, conv_weight, decay, gate, beta = normal(T, C), normal(4, C), normal(T, H, K), normal(T, H, V), normal(T, H)
    a_log, dt_bias, norm = normal(H) * 0.3, normal(H, K) * 0.3, normal(V)
    fixed = dict(a_log=a_log, dt_bias=dt_bias)
    rows = sequences([1, 1, 1], [3, 1, 2], False, False)
    state, window = normal(4, H, V, K), normal(4, 3, C)
    parts_state, parts_window = state.copy(), window.copy()
    out = ops.kda_decode(qkv, conv_weight, decay, beta, gate=gate, norm_weight=norm, state=state, window=window,
                         **{n: a for n, a in rows.items() if n != "n_prefill"}, **fixed)
    mixed = ops.short_conv(qkv, conv_weight, state=parts_window, **rows)
    core = ops.kda(mixed[:, :P].reshape(T, H, K), mixed[:, P : 2 * P].reshape(T, H, K), mixed[:, 2 * P :].reshape(T, H, V), decay, beta,
                   state=parts_state, **fixed, **rows)
    assert out.tobytes() == ops.gated_norm(core, gate, norm).tobytes()
    assert (state.tobytes(), window.tobytes()) == (parts_state.tobytes(), parts_window.tobytes())


def test_norms_mixtures_and_activations_are_their_formulas():
    x, gate, w = normal(5, 2, 16), normal(5, 2, 16), normal(16)
    want = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w / (1 + np.exp(-gate))
    np.testing.assert_allclose(ops.gated_norm(x, gate, w), want, rtol=1e-5, atol=1e-6)
    up = normal(5, 8)
    g = normal(5, 8)
    situ = 4 * np.tanh(g / 4) / (1 + np.exp(-g)) * 25 * np.tanh(up / 25)
    np.testing.assert_allclose(ops.activation(g, up), situ, rtol=1e-5, atol=1e-6)
    total = normal(3, 8)
    np.testing.assert_array_equal(ops.attn_res(None, total, normal(8)), total)
    addend, new = normal(3, 8), np.empty_like(total)
    np.testing.assert_array_equal(ops.attn_res(None, total, normal(8), addend=addend, sum_out=new), total + addend)
    np.testing.assert_array_equal(new, total + addend)


def test_mx_codes_are_those_of_ml_dtypes():
    x = (rng.integers(-8, 9, (4, 64)) / 4).astype(np.float32)
    codes, scale, back = np.empty((4, 64), np.uint8), np.empty((4, 2), np.uint8), np.empty((4, 64), np.float32)
    ops.mx_quantize(x, codes, scale)
    values = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.repeat(2.0 ** (scale.astype(np.int32) - 127), 32, 1)
    np.testing.assert_array_equal(values, x)  # quarters are exact
    np.testing.assert_array_equal(ops.mx_dequantize(codes, scale, back), x)


def test_strided_views_are_taken_as_they_are():
    packed = normal(6, 20)
    got = ops.activation(packed[:, :10], packed[:, 10:], "swiglu")
    assert got.tobytes() == ops.activation(packed[:, :10].copy(), packed[:, 10:].copy(), "swiglu").tobytes()


class Old:
    """Speaks DLPack as before 1.0."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_both_generations_of_capsules_and_bare_ones_are_taken():
    g, u, out = normal(2, 3), normal(2, 3), np.empty((2, 3), np.float32)
    want = ops.activation(g, u)
    ops.activation(Old(g), Old(u), out=Old(out))
    assert out.tobytes() == want.tobytes()
    ops.activation(g.__dlpack__(), u.__dlpack__(max_version=(1, 0)), out=out)
    assert out.tobytes() == want.tobytes()


def test_a_used_capsule_and_what_is_no_array_are_refused_by_name():
    g, u, out = normal(2, 3), normal(2, 3), np.empty((2, 3), np.float32)
    capsule = g.__dlpack__()
    ops.activation(capsule, u, out=out)
    with pytest.raises(ValueError, match="activation: gate: a capsule named 'used_dltensor'"):
        ops.activation(capsule, u, out=out)
    with pytest.raises(TypeError, match="activation: up: .*list.*DLPack"):
        ops.activation(g, [1, 2], out=out)
    with pytest.raises(TypeError, match="no argument bogus"):
        ops.Context().run("activation", dict(bogus=g))
    with pytest.raises(ValueError, match="no operator nothing"):
        ops.Context().run("nothing", {})


def test_what_is_read_only_may_be_read_and_not_written():
    g, u = normal(2, 3), normal(2, 3)
    want = ops.activation(g, u)
    g.flags.writeable = False
    assert ops.activation(g, u).tobytes() == want.tobytes()
    with pytest.raises(ValueError, match="activation: out: read-only"):
        ops.activation(u, u.copy(), out=g)
    frozen = normal(2, 3, dtype=bf16)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="activation: out: read-only"):
        ops.activation(u, u.copy(), out=frozen)


@pytest.mark.parametrize("change,message", [
    (dict(up=normal(2, 4)), "up: shape"), (dict(up=normal(2, 3).astype(np.float64)), "up: dtype"),
    (dict(up=np.zeros((2, 3), np.complex64)), "up"), (dict(kind="none"), "kind"), (dict(beta=-1.0), "beta"),
    (dict(up=normal(2, 3)[::-1]), "stride"), (dict(up=normal(2, 6)[:, ::2]), "stride"), (dict(out=normal(3, 3)), "out: shape")])
def test_wrong_arguments_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        ops.activation(**(dict(gate=normal(2, 3), up=normal(2, 3)) | change))


def test_an_array_is_given_back_when_the_call_ends():
    import sys

    g, u = normal(2, 3), normal(2, 3)
    before = sys.getrefcount(g)
    for _ in range(50):
        ops.activation(g, u)
        with pytest.raises(ValueError):
            ops.activation(g, normal(3, 3))
    assert sys.getrefcount(g) == before


def test_threads_may_share_a_context():
    context = ops.Context(threads=2)
    x = kda_inputs(65)
    args = sequences([65], [1], True, True)
    run = lambda: ops.kda(**x, state=np.zeros((2, 2, 48, 32), np.float32), **args, context=context).tobytes()
    want, got = run(), []
    threads = [threading.Thread(target=lambda: got.append(run())) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == [want] * 4


def test_other_threads_run_while_an_operator_computes():
    T = 8000  # long enough for a thread to wake up
    x, args, context = kda_inputs(T), sequences([T], [1], True, True), ops.Context(threads=1)
    state, out = np.zeros((2, 2, 48, 32), np.float32), np.empty((T, 2, 48), np.float32)
    assert gil.is_free_during(lambda: ops.kda(**x, state=state, out=out, **args, context=context))


def test_the_stubs_name_what_the_module_has():
    public = lambda names: {n for n in names if not n.startswith("_")}
    tree = ast.parse((pathlib.Path(kdelta.__file__).parent / "_core.pyi").read_text())
    stubs = {n.name: n for n in tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))}
    assert public(stubs) == public(dir(kdelta._core))
    for name, node in stubs.items():
        if isinstance(node, ast.ClassDef):
            assert public(n.name for n in node.body) == public(dir(getattr(kdelta._core, name))), name


def test_there_is_one_version():
    assert kdelta.__version__.count(".") == 2
