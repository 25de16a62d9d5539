"""The text network of the first generation in plain PyTorch, one whole sequence at a time. Needs torch 1.13 or newer.

    model = Model("checkpoint", torch.float64, bf16=True)
    logits = model.forward(ids)                     # [T, valid vocabulary]

Reads the original tensor names, the config keys of transformers, and experts in BF16. With bf16=True activations are rounded where a
BF16 engine rounds them: after projections, norms, convolutions, residual additions and activations, around tau, and the sums of the
routed and of the shared experts each before they are added.
"""
import json
import math
import os
from types import SimpleNamespace

import torch

import safetensors


class Model:
    def __init__(self, folder, dtype=torch.float32, bf16=False):
        with open(os.path.join(folder, "config.json")) as fh:
            self.config = SimpleNamespace(**json.load(fh)["text_config"])
        self.tensors, self.dtype = safetensors.read(folder), dtype
        self.round = (lambda x: x.bfloat16().to(dtype)) if bf16 else (lambda x: x)

    def get(self, name):
        kind, array = self.tensors["model.llm." + name]
        return torch.from_numpy(safetensors.bf16_to_f32(array) if kind == "BF16" else array.copy()).to(self.dtype)

    def rms(self, x, name):
        eps = self.config.rms_norm_eps
        return self.round(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * self.get(name))

    def linear(self, x, name):
        return self.round(x @ self.get(name).T)

    def conv(self, x, name):
        """y[t] = x[t] + sum_j taps[j] * x[t-W+1+j]."""
        taps = self.get(name).flatten(1).T                                               # [W, channels]
        padded = torch.cat([x.new_zeros(len(taps) - 1, x.shape[1]), x])
        return self.round(x + sum(tap * padded[j:j + len(x)] for j, tap in enumerate(taps)))

    def swiglu(self, h):
        return torch.nn.functional.silu(h[..., 0::2]) * h[..., 1::2]                     # rows alternate gate, up

    def forward(self, ids):
        c = self.config
        h = self.rms(self.get("embed.weight")[torch.as_tensor(ids)], "embed_norm.weight")
        for l in range(c.num_hidden_layers):
            p = f"layers.{l}."
            a = self.attention(l, self.rms(h, p + "attn_norm.weight"))
            h = self.round(h + self.conv(a, p + "attn_sconv.weight"))
            m = self.rms(h, p + "mlp_norm.weight")
            f = self.dense(p, m) if c.mlp_layer_types[l] == "dense" else self.moe(p, m)
            h = self.round(h + self.conv(f, p + "mlp_sconv.weight"))
        return self.rms(h, "norm.weight") @ self.get("unembed.weight")[:c.unpadded_vocab_size].T / c.logits_mup_width_multiplier

    def attention(self, l, x):
        c, p, T = self.config, f"layers.{l}.attn.", len(x)
        full = l not in c.local_layer_ids
        nq = c.num_attention_heads if full else c.swa_num_attention_heads
        nkv = c.num_key_value_heads if full else c.swa_num_key_value_heads
        q = self.rms(self.linear(x, p + "wq_du.weight").unflatten(1, (nq, -1)), p + "q_norm.weight")
        r = self.linear(x, p + "wr_du.weight").unflatten(1, (nq, -1))
        k = self.conv(self.linear(x, p + "wk_dv.weight"), p + "k_sconv.weight").unflatten(1, (nkv, -1))
        v = self.conv(self.linear(x, p + "wv_dv.weight"), p + "v_sconv.weight").unflatten(1, (nkv, -1))
        k = self.rms(k, p + "k_norm.weight")

        here = torch.arange(T)
        tau = torch.ones(T, dtype=self.dtype)
        if full and c.log_scaling_n_floor:
            tau = 1 + c.log_scaling_alpha * torch.log(((here + 1).to(self.dtype) / c.log_scaling_n_floor).clamp(min=1))
        table = self.get(p + "rel_logits_proj.proj")
        profile = self.round(self.round(torch.einsum("tnd,de->tne", r, table)) * tau[:, None, None])
        q = self.round(q * tau[:, None, None])
        distance, extent = here[:, None] - here[None, :], table.shape[1]
        visible = (distance >= 0) & (full or distance < c.sliding_window_size)
        bias = profile.gather(2, distance.clamp(0, extent - 1)[:, None].expand(-1, nq, -1)) * (distance < extent)[:, None]
        k, v = (t.repeat_interleave(nq // nkv, 1) for t in (k, v))
        score = torch.einsum("tnd,snd->tns", q, k) / q.shape[2] + bias
        weights = torch.softmax(score.masked_fill(~visible[:, None], -math.inf), -1)
        return self.linear(self.round(torch.einsum("tns,snd->tnd", weights, v)).flatten(1), p + "wo_ud.weight")

    def dense(self, p, x):
        act = self.round(self.swiglu(self.linear(x, p + "mlp.w13_dn.weight")))
        return self.round(self.linear(act, p + "mlp.w2_md.weight") * self.get(p + "mlp.global_scale"))

    def moe(self, p, x):
        """The shared experts take part in the normalisation of the weights, never in the choice."""
        c, E = self.config, self.config.n_routed_experts
        score = torch.sigmoid(x @ self.get(p + "mlp.gate.weight").T)
        order = torch.sort(score[:, :E] + self.get(p + "mlp.gate.bias"), dim=1, descending=True, stable=True)[1]
        ids = order[:, :c.num_experts_per_tok]
        weights = torch.cat([score.gather(1, ids), score[:, E:]], 1)
        weights = weights / weights.sum(1, keepdim=True) * c.route_scale * self.get(p + "mlp.gate.global_scale")
        w13, w2 = self.get(p + "mlp.experts.w13_weight"), self.get(p + "mlp.experts.w2_weight")
        s13, s2 = self.get(p + "mlp.shared_experts.shared_w13_weight"), self.get(p + "mlp.shared_experts.shared_w2_weight")
        routed, shared = torch.zeros_like(x), torch.zeros_like(x)
        for j in range(ids.shape[1]):
            for t, e in enumerate(ids[:, j].tolist()):
                act = self.round(self.swiglu(self.round(w13[e] @ x[t])))
                routed[t] += weights[t, j] * self.round(w2[e] @ act)
        for s in range(c.n_shared_experts):
            gamma = weights[:, ids.shape[1] + s, None]
            shared += self.round(gamma * self.swiglu(self.round(x @ s13[s].T))) @ s2[s].T
        return self.round(self.round(routed) + self.round(shared))
