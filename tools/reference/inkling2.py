"""The text network of Inkling 2 in plain PyTorch: slow, exact, and in the order of the paper. Needs torch 1.13 or newer.

    model = Model("models/nano")                    # float32; Model(path, torch.float64) for more digits
    state = State(model)
    logits = model.forward([1, 2, 3], state)        # [3, valid vocabulary]; calls continue the sequence
    trace = {}; model.forward(ids, state, trace)    # also collects the intermediates by name

One sequence at a time. `State` is all that a sequence keeps between calls: final K and V rows and three old inputs of each short
convolution. With bf16=True activations are rounded where a BF16 engine rounds them: after projections, convolutions, residual
additions and mixtures with their norm, at the relative profile, around tau and on both sides of the output
gate.
"""
import json
import math
import os
from types import SimpleNamespace

import torch

import quantize
import safetensors

DEFAULTS = dict(
    rms_norm_eps=1e-6, attn_res_eps=None, sconv_kernel_size=4, log_scaling_n_floor=128000, log_scaling_alpha=0.1,
    use_value_norm_no_gamma=True, depth_logit_scale=1.0, final_logit_softcapping=None, logits_mup_width_multiplier=1.0,
    route_scale=1.0, rel_extent=None, unpadded_vocab_size=None, sink_source="linear",
    qkvr_order=["q", "k", "v", "r", "gate", "sink"])
FIXED = dict(                                        # open choices of the format that this file knows in one form only
    gate_activation="sigmoid", norm_after_topk=True, attn_gate_act="sigmoid", attn_gate_input="q", sink_input="q", sink_tau=False,
    rel_input="q", rel_beyond_extent="zero", dyn_tap_input="own", dyn_tap_act="none", dyn_tap_static=False, dyn_skip=True,
    conv_first=True, tau_targets=["q", "profile"])
PROJECTIONS = dict(q="wq_du", k="wk_dv", v="wv_dv", r="wr_du", gate="wg_du", sink="wz_du")


def read_config(folder):
    with open(os.path.join(folder, "config.json")) as fh:
        config = json.load(fh)
    config = {**DEFAULTS, **config.get("text_config", config)}
    for key, only in FIXED.items():
        if config.get(key, only) != only:
            raise ValueError(f"config.json: {key} = {config[key]!r} is not supported here, only {only!r}")
    config.setdefault("moe_intermediate_size", config.get("intermediate_size"))
    return SimpleNamespace(**config)


class Weights:
    """Tensors of a checkpoint by name, in the compute type."""

    def __init__(self, folder, dtype):
        self.tensors, self.dtype = safetensors.read(folder), dtype

    def __contains__(self, name):
        return name in self.tensors

    def raw(self, name):
        return torch.from_numpy(self.tensors[name].array.copy())

    def get(self, *names):
        """The first of these names that exists; None if none does."""
        name = next((n for n in names if n in self.tensors), None)
        if name is None:
            return None
        kind, array = self.tensors[name]
        return torch.from_numpy(safetensors.bf16_to_f32(array) if kind == "BF16" else array.copy()).to(self.dtype)

    def experts(self, name):
        """[E, rows, K]: an _amax companion means NVFP4, a _scale alone MXFP8, neither plain numbers."""
        if name + "_amax" in self:
            return quantize.nvfp4_decode(self.raw(name), self.raw(name + "_scale"), self.raw(name + "_amax"),
                                         self.raw(name + "_outer_scale_denominator")).to(self.dtype)
        if name + "_scale" in self:
            return quantize.mxfp8_decode(self.raw(name), self.raw(name + "_scale")).to(self.dtype)
        return self.get(name)


class Layer:
    def __init__(self, c, w, i):
        p = f"model.llm.layers.{i}."
        a, nq, nkv = p + "attn.", c.num_attention_heads, c.num_key_value_heads
        self.full = i not in c.local_layer_ids
        self.query = w.get(p + "attn_res_query", p + "attn_query")                      # none in layer 0: it has one source
        self.mlp_query = w.get(p + "mlp_res_query", p + "mlp_query").reshape(1, -1)
        norm = w.get(p + "attn_norm.weight", p + "attn_norms.0.weight")
        self.norms = [w.get(f"{p}attn_norms.{j}.weight") for j in range(3)] if p + "attn_norms.1.weight" in w else list(norm.reshape(-1, c.hidden_size))
        self.mlp_norm = w.get(p + "mlp_norm.weight")
        self.query = None if self.query is None else self.query.reshape(len(self.norms), -1)

        fused = w.get(a + "qkvr.weight")
        if fused is None:
            self.w = {part: w.get(f"{a}{name}.weight") for part, name in PROJECTIONS.items()}
        else:
            rows = dict(q=nq * c.head_dim, k=nkv * c.head_dim, v=nkv * c.head_dim, r=nq * c.d_rel, sink=nq * (c.sink_source == "linear"))
            rows["gate"] = len(fused) - sum(rows.values())
            self.w = dict(zip(c.qkvr_order, fused.split([rows[part] for part in c.qkvr_order])))
            self.w = {part: x if len(x) else None for part, x in self.w.items()}
        self.w["o"] = w.get(a + "wo_ud.weight")
        self.table = w.get(a + "relative_table", a + "rel_logits_proj.proj")             # [d_rel, extent]
        self.extent = self.table.shape[1] - (c.sink_source == "rel_table")
        self.clip_scale = {part: w.get(f"{a}{part}_clip_scale") for part in "qkr"}

        self.taps = {part: w.get(f"{p}{part}_sconv.weight").flatten(1) for part in ("attn", "mlp")}       # [channels, W]
        if self.full:                                                                    # [nkv*W, H]: taps come from the token
            self.tap_generator = {part: w.get(f"{a}{part}_sconv_proj.weight", f"{a}{part}_sconv.weight") for part in "kv"}
        else:
            self.taps.update({part: w.get(f"{a}{part}_sconv.weight").flatten(1) for part in "kv"})

        self.router, self.bias = w.get(p + "mlp.gate.weight"), w.get(p + "mlp.gate.bias")
        scale = w.get(p + "mlp.gate.global_scale")
        self.route_scale = c.route_scale * (1.0 if scale is None else float(scale))
        self.w13, self.w2 = w.experts(p + "mlp.experts.w13_weight"), w.experts(p + "mlp.experts.w2_weight")


class State:
    def __init__(self, model):
        c = model.config
        kv, old = c.num_key_value_heads * c.head_dim, c.sconv_kernel_size - 1
        zeros = lambda *shape: torch.zeros(*shape, dtype=model.dtype)
        self.position = 0
        self.layers = [dict(k=zeros(0, c.num_key_value_heads, c.head_dim), v=zeros(0, c.num_key_value_heads, c.head_dim),
                            history=dict(k=zeros(old, kv), v=zeros(old, kv), attn=zeros(old, c.hidden_size), mlp=zeros(old, c.hidden_size)))
                       for _ in range(c.num_hidden_layers)]


def clip(x, limit, scale):
    """x [T, heads, width], shortened to L2 length `limit`; shorter vectors stay as they are."""
    if scale is not None:
        x = x * scale.reshape(-1, x.shape[-1])
    if not limit:
        return x
    length = x.norm(dim=-1, keepdim=True)
    return torch.where(length > limit, x * (limit / length.clamp(min=1e-30)), x)


class Model:
    def __init__(self, folder, dtype=torch.float32, bf16=False):
        self.config, self.dtype = read_config(folder), dtype
        self.round = (lambda x: x.bfloat16().to(dtype)) if bf16 else (lambda x: x)
        c, w = self.config, Weights(folder, dtype)
        self.embed, self.embed_norm = w.get("model.llm.embed.weight"), w.get("model.llm.embed_norm.weight")
        self.layers = [Layer(c, w, i) for i in range(c.num_hidden_layers)]
        self.output_query = w.get("model.llm.output_res_query", "model.llm.output_attn_res_query").reshape(1, -1)
        self.norm, self.unembed = w.get("model.llm.norm.weight"), w.get("model.llm.unembed.weight")[:c.unpadded_vocab_size or c.vocab_size]

    def rms0(self, x, eps=None):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + (self.config.rms_norm_eps if eps is None else eps))

    def linear(self, x, weight):
        return self.round(x @ weight.T)

    # ------------------------------------------------------------------------------------------ the walk through the layers
    def forward(self, ids, state, trace=None):
        c, keep = self.config, lambda name, x: trace.__setitem__(name, x) if trace is not None else None
        B = c.n_layers_per_attnres_block
        P = self.round(self.rms0(self.embed[torch.as_tensor(ids)]) * self.embed_norm)
        bank, delta = [], None
        for l, layer in enumerate(self.layers):
            memory = state.layers[l]
            if l:
                P = self.round(P + delta)
            keep(f"P_{l}_attn", P)
            sources = bank + [P]                                 # a bank row written now is P itself, once
            if l % B == 0:
                bank = bank + [P]
            xs = self.mix_norm(layer.query, sources, layer.norms)
            x = dict(zip("qkv", xs if layer.full else xs * 3))
            for part in "qkv" if layer.full else "q":
                keep(f"x_{l}_{part}", x[part])
            a = self.attention(layer, x, memory, state.position)
            keep(f"attn_{l}", a)
            a = self.short_conv(a, memory["history"], "attn", layer.taps["attn"].T)
            keep(f"attn_conv_{l}", a)
            P = a if l % B == 0 else self.round(P + a)           # a block begins with the attention of its first layer
            keep(f"P_{l}_mlp", P)
            y, = self.mix_norm(layer.mlp_query, bank + [P], [layer.mlp_norm])
            keep(f"x_{l}_mlp", y)
            f, route_ids, route_weights = self.moe(layer, y)
            keep(f"moe_{l}", f), keep(f"route_ids_{l}", route_ids), keep(f"route_weights_{l}", route_weights)
            delta = self.short_conv(f, memory["history"], "mlp", layer.taps["mlp"].T)
        P = self.round(P + delta)
        keep("P_final", P)
        h, = self.mix_norm(self.output_query, bank + [P], [self.norm])
        keep("h_final", h)
        state.position += len(ids)
        logits = h @ self.unembed.T / c.logits_mup_width_multiplier
        cap = c.final_logit_softcapping
        logits = cap * torch.tanh(logits / cap) if cap else logits
        keep("logits", logits)
        return logits

    # ------------------------------------------------------------------------------------------ depth mixing
    def mix_norm(self, queries, sources, gains):
        """For each query: softmax over the sources of query . rms0(source), the mixture of the raw sources, then its RMSNorm."""
        c, v = self.config, torch.stack(sources, 1)                                      # [T, sources, H]
        if queries is None:
            mixed = [sources[0]] * len(gains)
        else:
            eps = c.rms_norm_eps if c.attn_res_eps is None else c.attn_res_eps
            keys = self.rms0(v, eps)
            mixed = [torch.einsum("ts,tsh->th", torch.softmax(c.depth_logit_scale * (keys @ q), -1), v) for q in queries]
        return [self.round(self.rms0(x) * g) for x, g in zip(mixed, gains)]

    # ------------------------------------------------------------------------------------------ short convolutions
    def short_conv(self, x, history, stream, taps):
        """y[t] = x[t] + sum_j taps[j] * x[t-W+1+j]. taps [W, C], or [T, W, C] when each token brings its own."""
        W = self.config.sconv_kernel_size
        past = torch.cat([history[stream], x])
        history[stream] = past[len(x):]
        taps = taps.expand(len(x), *taps.shape) if taps.dim() == 2 else taps
        return self.round(x + sum(taps[:, j] * past[j:j + len(x)] for j in range(W)))

    def conv_kv(self, layer, part, x, history):
        """K or V rows of the new tokens, convolved: static taps in sliding layers, taps made by each token in full ones."""
        c, rows = self.config, self.linear(x, layer.w[part])
        if not layer.full:
            taps = layer.taps[part].T
        else:                                                    # row h*W + j of the generator makes tap j of KV head h
            taps = self.linear(x, layer.tap_generator[part]).unflatten(1, (c.num_key_value_heads, -1))
            taps = taps.transpose(1, 2).repeat_interleave(c.head_dim, 2)
        return self.short_conv(rows, history, part, taps).unflatten(1, (c.num_key_value_heads, c.head_dim))

    # ------------------------------------------------------------------------------------------ attention
    def attention(self, layer, x, memory, position):
        c, T, nq = self.config, len(x["q"]), self.config.num_attention_heads
        heads = lambda rows: rows.unflatten(1, (nq, -1))
        q = clip(heads(self.linear(x["q"], layer.w["q"])), c.q_l2_clip, layer.clip_scale["q"])
        k = clip(self.conv_kv(layer, "k", x["k"], memory["history"]), c.k_l2_clip, layer.clip_scale["k"])
        v = self.conv_kv(layer, "v", x["v"], memory["history"])
        v = self.rms0(v) if c.use_value_norm_no_gamma else v
        r = clip(heads(self.linear(x["q"], layer.w["r"])), c.rel_l2_clip, layer.clip_scale["r"])
        q, k, v, r = (self.round(t) for t in (q, k, v, r))
        memory["k"], memory["v"] = torch.cat([memory["k"], k]), torch.cat([memory["v"], v])
        k, v = memory["k"], memory["v"]

        here = torch.arange(position, position + T)
        distance = here[:, None] - torch.arange(position + T - len(k), position + T)     # [T, keys]
        visible = distance >= 0 if layer.full else (distance >= 0) & (distance < c.sliding_window_size)
        tau = torch.ones(T, dtype=self.dtype)
        if layer.full and c.log_scaling_n_floor:
            tau = 1 + c.log_scaling_alpha * torch.log(((here + 1).to(self.dtype) / c.log_scaling_n_floor).clamp(min=1))
        profile = self.round(torch.einsum("tnd,de->tne", r, layer.table))                # one bias for each head and distance
        q, biases = self.round(q * tau[:, None, None]), self.round(profile[..., :layer.extent] * tau[:, None, None])
        bias = biases.gather(2, distance.clamp(0, layer.extent - 1)[:, None].expand(-1, nq, -1))
        bias = bias * (distance < layer.extent)[:, None]
        group = nq // c.num_key_value_heads
        score = torch.einsum("tnd,snd->tns", q / math.sqrt(c.head_dim), k.repeat_interleave(group, 1)) + bias
        score = score.masked_fill(~visible[:, None], -math.inf)
        out = torch.einsum("tns,snd->tnd", torch.softmax(score, -1), v.repeat_interleave(group, 1))
        if c.sink_source != "none":                              # the sink takes a share of the probability and adds no value
            z = x["q"] @ layer.w["sink"].T if c.sink_source == "linear" else profile[..., layer.extent]
            out = out * torch.sigmoid(torch.logsumexp(score, -1) - z)[..., None]
        out = self.round(out)
        if layer.w.get("gate") is not None:
            out = out * torch.sigmoid(heads(self.linear(x["q"], layer.w["gate"])))
        if not layer.full:                                       # only window-1 old rows will be seen again
            memory["k"], memory["v"] = (t[max(0, len(t) - c.sliding_window_size + 1):] for t in (k, v))
        return self.linear(self.round(out.flatten(1)), layer.w["o"])

    # ------------------------------------------------------------------------------------------ mixture of experts
    def moe(self, layer, x):
        c = self.config
        score = torch.sigmoid(x @ layer.router.T)
        ids = torch.sort(score + layer.bias, dim=1, descending=True, stable=True)[1][:, :c.num_experts_per_tok]
        weights = score.gather(1, ids)
        weights = weights / weights.sum(1, keepdim=True) * layer.route_scale
        out = torch.zeros_like(x)
        for e in ids.unique().tolist():
            token, slot = (ids == e).nonzero(as_tuple=True)
            h = self.linear(x[token], layer.w13[e])                                      # [g0, u0, g1, u1, ...]
            act = self.situ(h[:, 0::2], h[:, 1::2]) * weights[token, slot, None]
            out.index_add_(0, token, self.round(act) @ layer.w2[e].T)
        return self.round(out), ids, weights

    def situ(self, g, u):
        """SiLU(g) * u with both factors bent by tanh: beta tanh(g/beta) sigmoid(g) * beta_l tanh(u/beta_l)."""
        b, bl = self.config.situ_beta, self.config.situ_linear_beta
        return (b * torch.tanh(g / b) if b else g) * torch.sigmoid(g) * (bl * torch.tanh(u / bl) if bl else u)
