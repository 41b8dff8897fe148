"""kdelta.compat.fla against a recurrence written from the meaning of flash-linear-attention's arguments."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from kdelta.compat.fla import chunk_kda, fused_recurrent_kda

rng = np.random.default_rng(5)


def inputs(B, T, H=2, K=16, V=24):
    normal = lambda *s: rng.normal(size=s).astype(np.float32)
    return dict(q=normal(B, T, H, K), k=normal(B, T, H, K), v=normal(B, T, H, V), g=normal(B, T, H, K), beta=normal(B, T, H))


def oracle(q, k, v, decay, beta, scale, state):
    """One sequence, [T, H, ...] in float64; state [H, K, V] as FLA lays it."""
    out = []
    for t in range(q.shape[0]):
        state = state * np.exp(decay[t])[..., None]
        u = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
        state = state + k[t][:, :, None] * u[:, None, :]
        out.append(np.einsum("hkv,hk->hv", state, q[t]) * scale)
    return np.array(out).reshape(v.shape), state


def expected(x, *, gate, sigmoid, l2, lower_bound=None, A_log=None, dt_bias=None, scale=None, initial=None, cu=None):
    f = {n: np.asarray(a, np.float64) for n, a in x.items()}
    B, T, H, K = f["q"].shape
    if l2:
        for n in "qk":
            f[n] = f[n] / np.sqrt((f[n] ** 2).sum(-1, keepdims=True) + 1e-6)
    g = f["g"]
    if gate:
        raw = g + (0 if dt_bias is None else dt_bias.reshape(H, K))
        a = np.exp(0 if A_log is None else A_log.reshape(H, 1))
        g = lower_bound / (1 + np.exp(-a * raw)) if lower_bound is not None else -a * np.log1p(np.exp(raw))
    beta = 1 / (1 + np.exp(-f["beta"])) if sigmoid else f["beta"]
    bounds = [(b, 0, T) for b in range(B)] if cu is None else [(0, a, b) for a, b in zip(cu, cu[1:])]
    o, states = np.zeros(f["v"].shape), []
    for n, (b, s, e) in enumerate(bounds):
        start = np.zeros((H, K, f["v"].shape[-1])) if initial is None else initial[n].astype(np.float64)
        o[b, s:e], last = oracle(f["q"][b, s:e], f["k"][b, s:e], f["v"][b, s:e], g[b, s:e], beta[b, s:e],
                                 K**-0.5 if scale is None else scale, start)
        states.append(last)
    return o, np.array(states)


def close(got, want, bound=2e-5):
    got, want = np.asarray(got, np.float64), np.asarray(want)
    assert got.shape == want.shape
    assert np.sqrt(((got - want) ** 2).mean()) <= bound * np.sqrt((want**2).mean())


FLAGS = list(itertools.product([False, True], repeat=3))


@pytest.mark.parametrize("call", [chunk_kda, fused_recurrent_kda])
@pytest.mark.parametrize("gate,sigmoid,l2", FLAGS)
@pytest.mark.parametrize("packed", [False, True])
def test_all_combinations_of_options_mean_what_they_mean_there(call, gate, sigmoid, l2, packed):
    x = inputs(1 if packed else 2, 70)
    if not gate:
        x["g"] = -np.abs(x["g"])
    if not sigmoid:
        x["beta"] = 1 / (1 + np.exp(-x["beta"]))
    if not l2:
        x["k"] *= 0.2
    cu = np.array([0, 66, 66, 70]) if packed else None
    n = 3 if packed else 2
    initial = rng.normal(size=(n, 2, 16, 24)).astype(np.float32)
    more = dict(A_log=(rng.normal(size=2) * 0.3).astype(np.float32), dt_bias=rng.normal(size=32).astype(np.float32)) if gate else {}
    o, s = call(**x, **more, initial_state=initial, output_final_state=True, use_qk_l2norm_in_kernel=l2, use_gate_in_kernel=gate,
                use_beta_sigmoid_in_kernel=sigmoid, cu_seqlens=cu)
    want_o, want_s = expected(x, gate=gate, sigmoid=sigmoid, l2=l2, initial=initial, cu=cu, **more)
    close(o, want_o)
    close(s, want_s)


@pytest.mark.parametrize("call", [chunk_kda, fused_recurrent_kda])
def test_a_bounded_gate_takes_a_log_in_any_of_its_shapes_or_none(call):
    x = inputs(1, 9)
    a = (rng.normal(size=2) * 0.3).astype(np.float32)
    flags = dict(use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True, use_qk_l2norm_in_kernel=True, lower_bound=-5.0)
    for A_log in (a, a.reshape(1, 1, 2, 1), None):
        o, s = call(**x, A_log=A_log, scale=0.3, **flags)
        want, _ = expected(x, gate=True, sigmoid=True, l2=True, lower_bound=-5.0, A_log=A_log, scale=0.3)
        close(o, want)
        assert s is None


def test_a_state_may_lie_value_first():
    x = inputs(2, 5)
    initial = rng.normal(size=(2, 2, 16, 24)).astype(np.float32)
    flags = dict(use_gate_in_kernel=True, lower_bound=-5.0, use_beta_sigmoid_in_kernel=True, output_final_state=True)
    o, s = chunk_kda(**x, initial_state=initial, **flags)
    o2, s2 = chunk_kda(**x, initial_state=np.swapaxes(initial, -1, -2), state_v_first=True, **flags)
    assert o.tobytes() == o2.tobytes() and np.array_equal(np.swapaxes(s, -1, -2), s2)


def test_a_decay_of_zero_and_a_very_slow_one_are_exact():
    x = inputs(1, 40)
    x["k"] *= 0.2
    x["beta"] = 1 / (1 + np.exp(-x["beta"]))
    x["g"] = -np.abs(x["g"]) * 1e-6
    x["g"][..., ::2] = 0
    close(chunk_kda(**x)[0], expected(x, gate=False, sigmoid=False, l2=False)[0])


def test_bf16_is_taken():
    x = {n: a.astype(ml_dtypes.bfloat16) for n, a in inputs(1, 70).items()}
    flags = dict(use_gate_in_kernel=True, lower_bound=-5.0, use_beta_sigmoid_in_kernel=True, use_qk_l2norm_in_kernel=True)
    o, _ = chunk_kda(**x, **flags)
    assert o.dtype == ml_dtypes.bfloat16
    close(o.astype(np.float32), expected(x, gate=True, sigmoid=True, l2=True, lower_bound=-5.0)[0], 6e-3)


@pytest.mark.parametrize("name,value", [("allow_neg_eigval", True), ("return_intermediate_states", True), ("use_graph", True),
                                        ("cp_context", object()), ("max_num_seqs", 4), ("head_first", True)])
def test_what_is_not_supported_is_refused_by_its_name(name, value):
    with pytest.raises(NotImplementedError, match=name):
        chunk_kda(**inputs(1, 3), **{name: value})


def test_grouped_values_and_wrong_shapes_are_refused_by_name():
    x = inputs(1, 3)
    with pytest.raises(NotImplementedError, match="v: .*4 heads"):
        chunk_kda(**(x | dict(v=np.zeros((1, 3, 4, 24), np.float32))))
    with pytest.raises(ValueError, match="initial_state"):
        chunk_kda(**(x | dict(g=-np.abs(x["g"]))), initial_state=np.zeros((1, 2, 24, 16), np.float32))
    with pytest.raises(ValueError, match="g: a positive"):
        chunk_kda(**(x | dict(g=np.abs(x["g"]))))
    with pytest.raises(ValueError, match="A_log"):
        chunk_kda(**x, use_gate_in_kernel=True)
    with pytest.raises(ValueError, match="batch of 2"):
        chunk_kda(**inputs(2, 3), cu_seqlens=[0, 3])
