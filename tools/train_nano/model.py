"""Inkling 2 for training: the mathematics of tools/reference/inkling2.py, whole batches at once, BF16 matrix products.

    net = Net(config).cuda()
    logits_loss = net.loss(rows)                     # rows [B, T] of chat.py's uint16 as int64
Documents packed into one row never see each other: attention, distances and convolutions stop at their borders. Every expert
runs on every token and the routing weight of those not chosen is zero, so a layer of experts is two plain matrix products.
Weights of one kind are stacked over the layers, so that the optimiser sees a few large tensors.
"""
import math
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "reference"))
import chat
import quantize

EPS = 1e-6


class Compile:
    """Whether the functions marked @compiled run compiled. Off: any shape without waiting for the compiler."""
    on = False


def compiled(f):
    fast = torch.compile(f, dynamic=False) if hasattr(torch, "compile") else f
    return lambda *args: fast(*args) if Compile.on else f(*args)


def rms0(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


def clip(x, limit):
    length = torch.sqrt(x.pow(2).sum(-1, keepdim=True) + 1e-12)
    return x * (limit / length).clamp(max=1.0)


def mixtures(v, queries):
    """v: list of [B, T, H]; queries [n, H] -> n mixtures of v."""
    if len(v) == 1:
        return [v[0]] * len(queries)
    scale = [torch.rsqrt(s.pow(2).mean(-1) + EPS) for s in v]
    out = []
    for q in queries.unbind(0):
        a = torch.softmax(torch.stack([(s * q).sum(-1) * r for s, r in zip(v, scale)]), 0)
        out.append(sum(a[i][..., None] * s for i, s in enumerate(v)))
    return out


@compiled
def mix_norm(sources, queries, gains):
    """sources: list of [B, T, H] bf16; queries [n, H], gains [n, H] fp32 -> n mixtures after their norms, bf16."""
    return [(rms0(h) * g).bfloat16() for h, g in zip(mixtures([s.float() for s in sources], queries), gains.unbind(0))]


def shifted(x, back, same):
    """x [B, T, C] moved back by `back` tokens, zero outside the document. same [B, T, W]: is t - back in my document."""
    return F.pad(x, (0, 0, back, 0))[:, :x.shape[1]] * same[..., back, None]


@compiled
def short_conv(x, taps, same):
    """Static taps [C, W]."""
    x = x.float()
    W = taps.shape[1]
    return (x + sum(taps[:, W - 1 - j] * (shifted(x, j, same) if j else x) for j in range(W))).bfloat16()


@compiled
def conv_and_add(x, taps, same, residual):
    x = x.float()
    W = taps.shape[1]
    y = (x + sum(taps[:, W - 1 - j] * (shifted(x, j, same) if j else x) for j in range(W))).bfloat16()
    return (residual.float() + y.float()).bfloat16()


def kv_final(x, taps, same, heads, limit):
    """Convolution of raw K or V rows, then clip (K) or the gain-free norm (V, limit None). taps [C, W] or per token [B, T, heads, W]."""
    B, T, C = x.shape
    x = x.float()
    W = taps.shape[-1]
    if taps.dim() == 2:
        y = x + sum(taps[:, W - 1 - j] * (shifted(x, j, same) if j else x) for j in range(W))
        y = y.reshape(B, T, heads, -1)
    else:
        split = x.reshape(B, T, heads, -1)
        y = split + sum(taps.float()[..., W - 1 - j, None] * (shifted(x, j, same).reshape(B, T, heads, -1) if j else split) for j in range(W))
    y = y.bfloat16().float()
    return (rms0(y) if limit is None else clip(y, limit)).bfloat16()


def softmax_and_sink(score, bias, visible, z):
    """-> probabilities bf16 and the share that the sink leaves, fp32. score [..., q, k]; z [..., q]."""
    a = torch.where(visible, score.float() + bias.float(), -math.inf)
    top = a.amax(-1, keepdim=True)
    e = torch.exp(a - top)
    total = e.sum(-1, keepdim=True)
    lse = (top + torch.log(total)).squeeze(-1)
    return (e / total).bfloat16(), torch.sigmoid(lse - z.float())


def sliding_scores(q, k, v, prof, z, visible):
    """Blocks of `window` queries see their own and the previous block. prof [B, T, nq, window] by distance. -> o, keep."""
    B, T, nq, d = q.shape
    nkv, window = k.shape[2], visible.shape[-2]
    n, group = T // window, nq // nkv
    blocks = lambda x: x.reshape(B, n, window, *x.shape[2:])

    def with_previous(x):
        x = blocks(x)
        return torch.cat([F.pad(x, (0,) * (2 * (x.dim() - 2)) + (1, 0))[:, :n], x], 2)

    kk, vv = (with_previous(x).permute(0, 1, 3, 2, 4).reshape(B * n * nkv, 2 * window, d) for x in (k, v))
    qq = (blocks(q) / math.sqrt(d)).permute(0, 1, 3, 2, 4).reshape(B * n * nkv, group * window, d)
    score = torch.bmm(qq, kk.transpose(1, 2)).view(B, n, nq, window, 2 * window)
    # bias[i, j] = prof[i, window + i - j]: rows of width 2*window+1 read back at width 2*window slide by one each
    flip = blocks(prof).flip(-1).permute(0, 1, 3, 2, 4)                                  # [B, n, nq, window, window]
    flat = F.pad(F.pad(flip, (0, window + 1)).flatten(-2), (1, 0))[..., :2 * window * window]
    bias = flat.reshape(B, n, nq, window, 2 * window)
    p, keep = softmax_and_sink(score, bias, visible, blocks(z).permute(0, 1, 3, 2))
    o = torch.bmm(p.view(B * n * nkv, group * window, 2 * window), vv)
    return o.view(B, n, nq, window, d).permute(0, 1, 3, 2, 4).reshape(B, T, nq, d), keep.permute(0, 1, 3, 2).reshape(B, T, nq)


def full_scores(q, k, v, prof, z, visible):
    B, T, nq, d = q.shape
    nkv, X = k.shape[2], prof.shape[-1]
    group = nq // nkv
    kk, vv = (x.permute(0, 2, 1, 3).reshape(B * nkv, T, d) for x in (k, v))
    qq = (q / math.sqrt(d)).permute(0, 2, 1, 3).reshape(B * nkv, group * T, d)
    score = torch.bmm(qq, kk.transpose(1, 2)).view(B, nq, T, T)
    flat = F.pad(prof.flip(-1).permute(0, 2, 1, 3), (0, T + 1 - X)).flatten(-2)          # rows of width T+1
    bias = flat[..., X - 1:X - 1 + T * T].reshape(B, nq, T, T)
    p, keep = softmax_and_sink(score, bias, visible, z.permute(0, 2, 1))
    o = torch.bmm(p.view(B * nkv, group * T, T), vv)
    return o.view(B, nq, T, d).permute(0, 2, 1, 3), keep.permute(0, 2, 1)


def visible_sliding(doc, window):
    """[B, blocks, 1, window, 2*window]"""
    blocks = doc.view(doc.shape[0], -1, window)
    i, j = torch.arange(window, device=doc.device)[:, None] + window, torch.arange(2 * window, device=doc.device)[None]
    near = (i - j >= 0) & (i - j < window)
    keys = torch.cat([F.pad(blocks, (0, 0, 1, 0), value=-1)[:, :-1], blocks], 2)
    return (near & (blocks[..., None] == keys[..., None, :]))[:, :, None]


def visible_full(doc):
    """[B, 1, T, T]"""
    i = torch.arange(doc.shape[1], device=doc.device)
    return ((i[:, None] >= i) & (doc[:, :, None] == doc[:, None]))[:, None]


@compiled
def attention(full, q, r, gate, k, v, z, k_taps, v_taps, same, visible, table, clips):
    """All of attention between its projections. The sink keeps back its share, the gate scales every channel."""
    B, T, _ = q.shape
    nq = z.shape[-1]
    hd = q.shape[-1] // nq
    nkv = k.shape[-1] // hd
    q2 = clip(q.float().reshape(B, T, nq, hd), clips[0]).bfloat16()
    r2 = clip(r.float().reshape(B, T, nq, -1), clips[2]).bfloat16()
    k2, v2 = kv_final(k, k_taps, same, nkv, clips[1]), kv_final(v, v_taps, same, nkv, None)
    o, keep = (full_scores if full else sliding_scores)(q2, k2, v2, r2 @ table, z, visible)
    o = o.float() * keep[..., None] * torch.sigmoid(gate.float().reshape(B, T, nq, hd))
    return o.bfloat16().reshape(B, T, nq * hd)



@compiled
def route(y, router, bias, top_k, scale):
    """-> weight of every expert for every token, zero if not chosen [B, T, E]; how many tokens chose it."""
    score = torch.sigmoid(y.float() @ router.float().T)
    sel = (score + bias).detach()
    E = sel.shape[-1]
    earlier = torch.arange(E, device=y.device)[None] < torch.arange(E, device=y.device)[:, None]
    a, b = sel[..., :, None], sel[..., None, :]
    rank = ((b > a) | ((b == a) & earlier)).sum(-1)
    chosen = (rank < top_k).float()
    w = score * chosen
    return w / w.sum(-1, keepdim=True) * scale, chosen.mean((0, 1))


@compiled
def situ_weighted(h, weight, beta, beta_linear):
    """h [B, T, E, 2, I]: gates, then ups (checkpoints interleave their rows)."""
    g, u = (x.float() for x in h.unbind(-2))
    act = beta * torch.tanh(g / beta) * torch.sigmoid(g) * beta_linear * torch.tanh(u / beta_linear)
    return (act * weight[..., None]).bfloat16()


@compiled
def head_loss(h, unembed, target, weight, cap):
    logits = (h @ unembed.T).float()
    logits = cap * torch.tanh(logits / cap)
    nll = torch.logsumexp(logits, -1) - logits.gather(-1, target[..., None]).squeeze(-1)
    return (nll * weight).sum()


class Net(nn.Module):
    def __init__(self, config, generator=None):
        super().__init__()
        c = self.config = config
        H, L, I, E, V = c["hidden_size"], c["num_hidden_layers"], c["moe_intermediate_size"], c["n_routed_experts"], c["vocab_size"]
        nq, nkv, hd, dr, W = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], c["d_rel"], c["sconv_kernel_size"]
        self.full = [l for l in range(L) if l not in c["local_layer_ids"]]
        N, window = len(self.full), c["sliding_window_size"]
        g = generator or torch.Generator().manual_seed(1)
        normal = lambda std, *shape: nn.Parameter(torch.randn(*shape, generator=g) * std)
        self.embed, self.unembed = normal(0.5, V, H), normal(0.01, V, H)
        self.embed_norm, self.norm = nn.Parameter(torch.ones(H)), nn.Parameter(torch.ones(H))
        self.attn_norm, self.mlp_norm = nn.Parameter(torch.ones(L + 2 * N, H)), nn.Parameter(torch.ones(L, H))    # full layers own three
        self.attn_query, self.mlp_query, self.out_query = (nn.Parameter(torch.zeros(n, H)) for n in (L + 2 * N, L, 1))
        for name, rows, std in (("wq", nq * hd, 1.0), ("wk", nkv * hd, 1.0), ("wv", nkv * hd, 1.0), ("wr", nq * dr, 1.0), ("wg", nq * hd, 0.5)):
            setattr(self, name, normal(std * H ** -0.5, L, rows, H))
        self.wz = normal(0.1 * H ** -0.5, L, nq, H)
        self.wo = normal((nq * hd) ** -0.5, L, H, nq * hd)
        self.table = normal(0.02, L, dr, window)
        self.k_taps, self.v_taps = normal(0.1, L - N, nkv * hd, W), normal(0.1, L - N, nkv * hd, W)
        self.k_generator, self.v_generator = normal(0.02, N, nkv * W, H), normal(0.02, N, nkv * W, H)
        self.attn_taps, self.mlp_taps = normal(0.05, L, H, W), normal(0.05, L, H, W)
        self.router = normal(H ** -0.5, L, E, H)
        self.register_buffer("bias", torch.zeros(L, E))
        self.w13, self.w2 = normal(H ** -0.5, L, E, 2 * I, H), normal(0.7 * I ** -0.5, L, E, H, I)
        self.fake_quant = False

    def expert_weights(self):
        """BF16 working copies; with fake_quant rounded to their storage format, gradients passing straight through."""
        if not self.fake_quant:
            return self.w13.bfloat16(), self.w2.bfloat16()
        return tuple(fake_quantise(w, self.config["nvfp4_layers"]) for w in (self.w13, self.w2))

    def body(self, ids, doc, tap=None):
        """ids, doc [B, T] -> final states [B, T, H] bf16, expert loads [L, E]. T must be a multiple of the window.
        tap: a list to append what a drafter may see, the block sum after each layer and the output mixture before its norm."""
        c, B = self.config, self.config["n_layers_per_attnres_block"]
        nkv, W, clips = c["num_key_value_heads"], c["sconv_kernel_size"], (c["q_l2_clip"], c["k_l2_clip"], c["rel_l2_clip"])
        see_window, see_all = visible_sliding(doc, c["sliding_window_size"]), visible_full(doc)
        same = torch.stack([F.pad(doc, (j, 0), value=-1)[:, :doc.shape[1]] == doc for j in range(W)], -1).float()
        w = {name: getattr(self, name).bfloat16().unbind(0) for name in
             ("wq", "wk", "wv", "wr", "wg", "wz", "wo", "table", "k_generator", "v_generator", "router")}
        w.update({name: getattr(self, name).bfloat16().float().unbind(0) for name in ("k_taps", "v_taps", "attn_taps", "mlp_taps")})
        w13, w2 = (x.unbind(0) for x in self.expert_weights())
        three = [1 + 2 * (l in self.full) for l in range(c["num_hidden_layers"])]
        queries, gains = self.attn_query.split(three), self.attn_norm.bfloat16().float().split(three)
        mlp_queries, mlp_gains = self.mlp_query.split(1), self.mlp_norm.bfloat16().float().split(1)

        P, = mix_norm([F.embedding(ids, self.embed.bfloat16())], self.embed_norm[None], self.embed_norm.bfloat16().float()[None])
        bank, delta, loads = [], None, []
        sliding_index = 0
        for l in range(c["num_hidden_layers"]):
            full = l in self.full
            if l:
                P = conv_and_add(delta, w["mlp_taps"][l - 1], same, P)
                if tap is not None:
                    tap.append(P)
            sources = bank + [P]
            if l % B == 0:
                bank = bank + [P]
            x = mix_norm(sources, queries[l], gains[l])
            xq, xk, xv = x if full else x * 3
            if full:
                i = self.full.index(l)
                taps = [F.linear(s, g).unflatten(-1, (nkv, W)) for s, g in ((xk, w["k_generator"][i]), (xv, w["v_generator"][i]))]
            else:
                taps = w["k_taps"][sliding_index], w["v_taps"][sliding_index]
                sliding_index += 1
            if full:
                q, r, gate, z = F.linear(xq, torch.cat([w[n][l] for n in ("wq", "wr", "wg", "wz")])).split([w[n][l].shape[0] for n in ("wq", "wr", "wg", "wz")], -1)
                k, v = F.linear(xk, w["wk"][l]), F.linear(xv, w["wv"][l])
            else:
                parts = ("wq", "wr", "wg", "wk", "wv", "wz")
                q, r, gate, k, v, z = F.linear(xq, torch.cat([w[n][l] for n in parts])).split([w[n][l].shape[0] for n in parts], -1)
            o = attention(full, q, r, gate, k, v, z, *taps, same, see_all if full else see_window, w["table"][l], clips)
            a = F.linear(o, w["wo"][l])
            P = short_conv(a, w["attn_taps"][l], same) if l % B == 0 else conv_and_add(a, w["attn_taps"][l], same, P)
            y, = mix_norm(bank + [P], mlp_queries[l], mlp_gains[l])
            weight, load = route(y, w["router"][l], self.bias[l], c["num_experts_per_tok"], c["route_scale"])
            loads.append(load)
            E = weight.shape[-1]
            h = F.linear(y, w13[l].flatten(0, 1)).unflatten(-1, (E, 2, -1))
            act = situ_weighted(h, weight, c["situ_beta"], c["situ_linear_beta"])
            delta = F.linear(act.flatten(-2), w2[l].transpose(0, 1).flatten(1))          # sum over experts inside the product
        P = conv_and_add(delta, w["mlp_taps"][-1], same, P)
        if tap is not None:
            tap += [P, mixtures([s.float() for s in bank + [P]], self.out_query)[0].bfloat16()]
        h, = mix_norm(bank + [P], self.out_query, self.norm.bfloat16().float()[None])
        return h, torch.stack(loads)

    def loss(self, rows):
        """Mean over target tokens, in nats; expert loads; number of targets."""
        ids, start = rows & chat.ID_MASK, (rows & chat.START) > 0
        doc = start.cumsum(1)
        h, loads = self.body(ids, doc)
        target = F.pad(rows[:, 1:], (0, 1))
        weight = ((target & chat.TARGET) > 0) & ((target & chat.START) == 0)
        total = head_loss(h, self.unembed.bfloat16(), target & chat.ID_MASK, weight.float(), self.config["final_logit_softcapping"])
        count = weight.sum()
        return total / count, loads, count

    @torch.no_grad()
    def logits(self, ids, at=None):
        """ids [B, T] one document a row; at [B]: only these positions. Without the padded vocabulary."""
        h, _ = self.body(ids, torch.ones_like(ids))
        if at is not None:
            h = h[torch.arange(len(ids), device=ids.device), at]
        cap = self.config["final_logit_softcapping"]
        return cap * torch.tanh((h.float() @ self.unembed.bfloat16().float().T)[..., :self.config["unpadded_vocab_size"]] / cap)


@compiled
def fake_quantise(w, nvfp4_layers):
    rounded = torch.cat([quantize.nvfp4_round(w[:nvfp4_layers]), quantize.mxfp8_round(w[nvfp4_layers:])])
    return (w + (rounded - w).detach()).bfloat16()
