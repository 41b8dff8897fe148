"""The KDA layer of a cluster engine on these operators, called as such an engine calls its own: one packed batch with cu_seqlens,
pools addressed by slot numbers, outputs written in place, checkpoints for a prefix cache, drafts, a share of the heads on each rank.

The pools are the caller's, laid [slots, H, V, K] and [slots, rows, channels]; slot 0 belongs to nobody, padded rows have slot -1.
Each test runs on the CPU and, where there is one, on a CUDA device, in the same words.
"""

import cuda_device
import ml_dtypes
import numpy as np
import pytest

from kdelta import ops

bf16 = ml_dtypes.bfloat16
K = V = 128
TAPS = 4


class Weights:
    def __init__(self, heads, seed=1):
        rng = np.random.default_rng(seed)
        normal = lambda *s: rng.normal(size=s).astype(np.float32)
        self.heads = heads
        self.conv = normal(TAPS, 3 * heads * K) * 0.5
        self.a_log = (normal(heads) * 0.3).reshape(1, 1, heads, 1)  # as checkpoints may store it
        self.dt_bias = normal(heads, K) * 0.3
        self.norm = normal(V)

    def shard(self, rank, ranks):
        n = self.heads // ranks
        part = slice(rank * n, (rank + 1) * n)
        s = Weights(n)
        s.conv = np.ascontiguousarray(self.conv.reshape(TAPS, 3, self.heads, K)[:, :, part].reshape(TAPS, -1))
        s.a_log, s.dt_bias, s.norm = self.a_log[:, :, part], self.dt_bias[part], self.norm
        return s


class Pools:
    """On a device they stay there; conv and state show them."""

    def __init__(self, place, weights, slots=16, columns=1):
        self.place, self.columns = place, columns
        self.there = (place.put(np.full((slots, TAPS - 1 + columns - 1, 3 * weights.heads * K), np.nan, np.float32).astype(bf16)),
                      place.put(np.full((slots, weights.heads, V, K), np.nan, np.float32)))

    @property
    def conv(self):
        return self.place.get(self.there[0])

    @property
    def state(self):
        return self.place.get(self.there[1])


class Row:
    """A request's part of a step. tokens indexes the stream that inputs are taken from; checkpoints are (tokens, slot)."""

    def __init__(self, tokens, slots, has_state=False, accepted=1, checkpoints=()):
        self.tokens, self.slots, self.has_state, self.accepted, self.checkpoints = tokens, slots, has_state, accepted, checkpoints


class Inputs:
    """What the projections would give for 200 tokens."""

    def __init__(self, heads, seed=2):
        rng = np.random.default_rng(seed)
        normal = lambda *s: rng.normal(size=s).astype(np.float32).astype(bf16)
        self.qkv, self.decay, self.gate, self.beta = normal(200, 3 * heads * K), normal(200, heads, K), normal(200, heads, V), normal(200, heads)

    def shard(self, heads, rank, ranks):
        n = heads // ranks
        part = slice(rank * n, (rank + 1) * n)
        s = object.__new__(Inputs)
        s.qkv = np.ascontiguousarray(self.qkv.reshape(200, 3, heads, K)[:, :, part].reshape(200, -1))
        s.decay, s.gate, s.beta = self.decay[:, part], self.gate[:, part], self.beta[:, part]
        return s


def layer(w, pools, x, prefill, decode, padding=0):
    """mixed_qkv, g1, g2, beta -> core_attn_out, in place; rows of prefill first, padded rows last."""
    rows = prefill + decode
    idle = [Row([], [-1] * pools.columns) for _ in range(padding)]
    put, context = pools.place.put, pools.place.context
    tokens = np.concatenate([np.asarray(r.tokens, np.int64) for r in rows]).astype(np.int64)
    T = len(tokens) + padding  # the capacity of a bucket
    take = lambda a: put(np.concatenate([a[tokens], np.full((padding, *a.shape[1:]), np.nan, np.float32).astype(a.dtype)]))
    snapshots = [(n, at, slot) for n, r in enumerate(prefill) for at, slot in r.checkpoints]
    cu = np.cumsum([0] + [len(r.tokens) for r in rows + idle]).astype(np.int32)
    seq = dict(cu=put(cu), slot=put(np.array([r.slots for r in rows + idle], np.int32)),
               accepted=put(np.array([r.accepted for r in rows + idle], np.int32)),
               fresh=put(np.array([not r.has_state for r in rows + idle], np.uint8)), n_prefill=len(prefill), n_decode=len(decode) + padding,
               snapshot=put(np.array(snapshots, np.int32).reshape(-1, 3)) if snapshots else None, context=context)
    core_attn_out = put(np.full((T, w.heads, V), np.nan, np.float32).astype(bf16))
    conv = ops.short_conv(take(x.qkv), put(w.conv), state=pools.there[0], **seq)
    q, k, v = (conv.reshape(T, 3, w.heads, K)[:, i] for i in range(3))  # views: nothing is split by copying
    out = ops.kda(q, k, v, take(x.decay), take(x.beta), put(w.a_log.reshape(-1)), put(w.dt_bias), state=pools.there[1], **seq)
    live = put(np.array([len(tokens)], np.int32))
    ops.gated_norm(out, take(x.gate), put(w.norm), live=live, out=core_attn_out, context=context)
    return pools.place.get(core_attn_out)


def alone(place, w, x, tokens, columns=1):
    """One request in one prefill: outputs, and the pools behind it (slot 1)."""
    pools = Pools(place, w, 4, columns)
    return layer(w, pools, x, [Row(tokens, [1] * columns)], []), pools


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def place(request):
    if request.param == "cpu":
        return cuda_device.Cpu()
    if reason := cuda_device.why_not():
        pytest.skip(reason)
    return cuda_device.Cuda()


@pytest.fixture(scope="module")
def model():
    return Weights(2), Inputs(2)


def test_prefill_decode_and_padding_in_one_step_are_each_as_if_alone(place, model):
    w, x = model
    pools = Pools(place, w)
    first, _ = alone(place, w, x, range(0, 70))
    second, _ = alone(place, w, x, range(100, 164))
    layer(w, pools, x, [Row(range(100, 164), [5])], [])
    before = pools.state.copy(), pools.conv.copy()
    out = layer(w, pools, x, [Row(range(0, 70), [3])], [Row([164], [5], has_state=True)], padding=6)
    assert out[:70].tobytes() == first.tobytes()
    whole, pool = alone(place, w, x, range(100, 165))
    assert second.tobytes() == whole[:64].tobytes()
    np.testing.assert_allclose(out[70].astype(np.float32), whole[64].astype(np.float32), rtol=0.05, atol=0.02)
    assert not out[71:].astype(np.float32).any()  # padded rows are zeros whatever their inputs hold
    for pool_now, pool_before in zip((pools.state, pools.conv), before):
        others = [s for s in range(16) if s not in (3, 5)]
        assert pool_now[others].tobytes() == pool_before[others].tobytes()


def test_a_checkpoint_is_the_state_of_a_prompt_that_ends_there(place, model):
    w, x = model
    pools = Pools(place, w)
    out = layer(w, pools, x, [Row(range(0, 150), [2], checkpoints=[(64, 7), (128, 8)])], [])
    for at, slot in ((64, 7), (128, 8)):
        _, cut = alone(place, w, x, range(0, at))
        assert pools.state[slot].tobytes() == cut.state[1].tobytes()
        assert pools.conv[slot].tobytes() == cut.conv[1].tobytes()
        resumed = layer(w, pools, x, [Row(range(at, 150), [slot], has_state=True)], [])
        assert resumed.tobytes() == out[at:].tobytes()


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_drafts_that_are_rejected_leave_no_trace(place, model, kept):
    """A step verifies two drafts; the next one says how many tokens stand, and goes on as if only those had been."""
    w, x = model
    columns, base = 3, list(range(0, 64))
    pools, plain = Pools(place, w, columns=columns), Pools(place, w, columns=columns)
    slots, one = [1, 2, 3], [4, 5, 6]
    layer(w, pools, x, [Row(base, slots)], [])
    layer(w, plain, x, [Row(base, one)], [])
    drafted = [64, 65, 66] if kept == 3 else [64, 65, 190] if kept == 2 else [64, 191, 190]
    verified = layer(w, pools, x, [], [Row(drafted, slots, has_state=True)])
    for i in range(kept):
        single = layer(w, plain, x, [], [Row([64 + i], one, has_state=True)])
        assert verified[i].tobytes() == single[0].tobytes()
    after = layer(w, pools, x, [], [Row([64 + kept], slots, has_state=True, accepted=kept)])
    assert after.tobytes() == layer(w, plain, x, [], [Row([64 + kept], one, has_state=True)]).tobytes()


@pytest.mark.parametrize("heads,ranks", [(24, 2), (24, 8)])
def test_a_rank_computes_its_heads_as_the_whole_does(place, heads, ranks):
    w, x = Weights(heads), Inputs(heads)
    whole, _ = alone(place, w, x, range(0, 9))
    n = heads // ranks
    for rank in (0, ranks - 1):
        part, _ = alone(place, w.shard(rank, ranks), x.shard(heads, rank, ranks), range(0, 9))
        assert part.tobytes() == np.ascontiguousarray(whole[:, rank * n : (rank + 1) * n]).tobytes()


@pytest.mark.parametrize("local_heads", [12, 24, 48, 96])
def test_every_local_head_count_of_a_cluster_decodes(place, local_heads):
    w, x = Weights(local_heads), Inputs(local_heads)
    pools = Pools(place, w, slots=3)
    layer(w, pools, x, [Row([0, 1, 2, 3], [1])], [])
    out = layer(w, pools, x, [], [Row([4], [1], has_state=True)], padding=1)
    assert np.isfinite(out[0].astype(np.float32)).all() and not out[1].astype(np.float32).any()


def test_scratch_for_the_largest_step_serves_every_smaller_one(place):
    """An engine asks once, for its capacities, before it records its steps."""
    context = place.context or ops.Context(threads=2)

    def bytes_for(T, N, prefill):
        shapes = dict(q=(T, 2, K), k=(T, 2, K), v=(T, 2, V), gate=(T, 2, K), beta=(T, 2), out=(T, 2, V))
        args = {n: np.empty(s, np.float32) for n, s in shapes.items()}
        args |= dict(a_log=np.empty(2, np.float32), dt_bias=np.empty((2, K), np.float32), state=np.empty((N + 1, 2, V, K), np.float32),
                     cu=np.empty(N + 1, np.int32), slot=np.empty((N, 1), np.int32), accepted=np.empty(N, np.int32),
                     fresh=np.empty(N, np.uint8), n_prefill=N if prefill else 0, n_decode=0 if prefill else N, gate_kind=1, lower_bound=-5.0,
                     scale=1.0, max_len=T)
        return context.workspace("kda", {n: place.put(a) if isinstance(a, np.ndarray) else a for n, a in args.items()})

    most = bytes_for(200, 4, True)
    assert all(bytes_for(T, N, p) <= most for T in (1, 64, 65, 200) for N in (1, 4) for p in (False, True))


def test_a_faulty_row_changes_nothing(place, model):
    """The CPU refuses the step; a device, whose rows no host reads, skips the row whole."""
    w, x = model
    pools = Pools(place, w)
    layer(w, pools, x, [Row(range(0, 10), [1])], [])
    before = pools.state.tobytes(), pools.conv.tobytes()
    for row, message in ((Row([10], [99], has_state=True), "slot"), (Row([10], [0], has_state=True), "slot"),
                         (Row([10], [1], has_state=True, accepted=2), "accepted"), (Row([10, 11], [1], has_state=True), "columns")):
        if place.context is None:
            with pytest.raises(ValueError, match=message):
                layer(w, pools, x, [], [row])
        else:
            assert not layer(w, pools, x, [], [row]).astype(np.float32).any(), message
        assert (pools.state.tobytes(), pools.conv.tobytes()) == before, message
    twice = [Row([10], [1], has_state=True), Row([11], [1], has_state=True)]
    if place.context is None:
        with pytest.raises(ValueError, match="named by"):
            layer(w, pools, x, [], twice)
        assert (pools.state.tobytes(), pools.conv.tobytes()) == before
    else:  # the first row of a slot is nobody's fault
        both = layer(w, pools, x, [], twice)
        fresh = Pools(place, w)
        layer(w, fresh, x, [Row(range(0, 10), [1])], [])
        assert both[0].tobytes() == layer(w, fresh, x, [], twice[:1]).tobytes() and not both[1].astype(np.float32).any()
        assert (pools.state.tobytes(), pools.conv.tobytes()) == (fresh.state.tobytes(), fresh.conv.tobytes())


def test_the_layer_is_the_recurrence_of_its_formulas(place, model):
    """Convolution with SiLU, delta rule, gated norm of two requests, in float64."""
    w, x = model
    pools = Pools(place, w)
    out = layer(w, pools, x, [Row(range(0, 70), [3]), Row(range(90, 95), [4])], []).astype(np.float64)
    f = lambda a: np.asarray(a, np.float64)
    sigmoid = lambda a: 1 / (1 + np.exp(-a))
    for first, last, slot, at in ((0, 70, 3, 0), (90, 95, 4, 70)):
        n = last - first
        padded = np.concatenate([np.zeros((TAPS - 1, x.qkv.shape[1])), f(x.qkv[first:last])])
        mixed = sum(f(w.conv[j]) * padded[j : j + n] for j in range(TAPS))
        q, k, v = np.moveaxis((mixed * sigmoid(mixed)).reshape(n, 3, w.heads, K), 1, 0)
        q, k = (a / np.sqrt((a**2).sum(-1, keepdims=True) + 1e-6) for a in (q, k))
        decay = np.exp(-5 * sigmoid(np.exp(f(w.a_log).reshape(-1))[:, None] * (f(x.decay[first:last]) + f(w.dt_bias))))
        beta, state = sigmoid(f(x.beta[first:last])), np.zeros((w.heads, V, K))
        for t in range(n):
            state *= decay[t][:, None]
            u = beta[t][:, None] * (v[t] - np.einsum("hvk,hk->hv", state, k[t]))
            state += u[:, :, None] * k[t][:, None]
            core = np.einsum("hvk,hk->hv", state, q[t]) * K**-0.5
            want = core / np.sqrt((core**2).mean(-1, keepdims=True) + 1e-5) * f(w.norm) * sigmoid(f(x.gate[first + t]))
            assert np.sqrt(((out[at + t] - want) ** 2).mean()) <= 2e-2 * np.sqrt((want**2).mean()), (first, t)
        got = f(pools.state[slot])
        assert np.sqrt(((got - state) ** 2).mean()) <= 1e-2 * np.sqrt((state**2).mean())
