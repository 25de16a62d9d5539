"""The DSpark drafter of nano for training: proposes a block of tokens from hidden states of the target (spec: arXiv 2607.05147).

    drafter = Drafter(drafter_config(net.config), net).cuda()
    rows = target_rows(net, ids, marks, doc, taps)          # one forward pass of the target
    logits, confidence = drafter(rows, anchors)             # [B, N, block, V], [B, N, block], all anchors at once
Block n of a row begins with its anchor, the last token that is known; slot k predicts token anchor + 1 + k. It sees the target's states
strictly before the anchor, in its own document, and all slots of its own block. Embedding and output head are the target's, frozen.
"""
import json
import os
import sys
from collections import namedtuple

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "reference"))
import safetensors

EPS = 1e-6
NANO_DRAFTER = dict(intermediate_size=768, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4, head_dim=64,
                    block_size=7, markov_rank=64, target_layer_ids=[2, 5, 8, 11, 12], mask_token_id=8255, rope_theta=10000.0)

# What the target leaves of a batch of rows. ids, said, doc, position [B, T]; context [B, T, taps * H]; final [B, T, H] after the norm
Rows = namedtuple("Rows", "ids said doc position context final")


def drafter_config(target, **changes):
    """As DrafterConfig of the engine reads it. target: the target's text_config."""
    c = {**NANO_DRAFTER, **changes}
    return {"architectures": ["Qwen3DSparkModel"], "model_type": "qwen3", "dtype": "bfloat16", "vocab_size": target["vocab_size"], "hidden_size": target["hidden_size"],
            "hidden_act": "silu", "attention_bias": False, "rms_norm_eps": EPS, "sample_from_anchor": True, "markov_head_type": "rnn",
            "enable_confidence_head": True, "confidence_head_with_markov": True, "tie_word_embeddings": False,
            "logits_mup_width_multiplier": target["logits_mup_width_multiplier"], "num_target_layers": target["num_hidden_layers"],
            "rope_parameters": {"rope_theta": c.pop("rope_theta"), "rope_type": "default"},
            "layer_types": ["full_attention"] * c["num_hidden_layers"], **c}


@torch.no_grad()
def target_rows(net, ids, said, doc, taps):
    """said [B, T]: is this a token that the model says. Tap i < layers: the block sum after layer i, i = layers: the output mixture."""
    states = []
    final, _ = net.body(ids, doc, states)
    place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    first = F.pad(doc[:, 1:] != doc[:, :-1], (1, 0), value=True)
    position = place - torch.where(first, place, torch.zeros_like(place)).cummax(1).values
    return Rows(ids, said, doc, position, torch.cat([states[i] for i in taps], -1), final)


def rms_norm(x, weight):
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def linear(x, weight, bias=None):
    y = x.bfloat16() @ weight.bfloat16().T
    return y if bias is None else y + bias.bfloat16()


def rope(x, position, frequencies):
    """x [..., heads, hd], position [...]. Halves are paired."""
    angle = position[..., None, None].float() * frequencies
    cos, sin = torch.cos(angle), torch.sin(angle)
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).bfloat16()


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, ffn, hd = c["hidden_size"], c["intermediate_size"], c["head_dim"]
        self.heads, self.kv_heads, self.hd = c["num_attention_heads"], c["num_key_value_heads"], hd
        matrix = lambda rows, cols, gain=1.0: nn.Parameter(torch.randn(rows, cols) * gain * cols ** -0.5)
        self.input_layernorm, self.post_attention_layernorm = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        self.q_norm, self.k_norm = nn.Parameter(torch.ones(hd)), nn.Parameter(torch.ones(hd))
        self.q_proj, self.k_proj, self.v_proj = matrix(self.heads * hd, d), matrix(self.kv_heads * hd, d), matrix(self.kv_heads * hd, d)
        self.o_proj = matrix(d, self.heads * hd, 0.5)
        self.gate_proj, self.up_proj, self.down_proj = matrix(ffn, d), matrix(ffn, d), matrix(d, ffn, 0.5)

    def keys_and_values(self, x, position, frequencies):
        k = rms_norm(linear(x, self.k_proj).unflatten(-1, (self.kv_heads, self.hd)), self.k_norm)
        return rope(k, position, frequencies), linear(x, self.v_proj).unflatten(-1, (self.kv_heads, self.hd))

    def attention(self, h, position, context, context_position, visible, frequencies):
        """h [B, N, K, d]; context [B, T, d]; visible [B, N, T]."""
        B, N, K, _ = h.shape
        T, G, n, hd = context.shape[1], self.heads // self.kv_heads, self.kv_heads, self.hd
        u = rms_norm(h, self.input_layernorm)
        q = rope(rms_norm(linear(u, self.q_proj).unflatten(-1, (self.heads, hd)), self.q_norm), position, frequencies) * hd ** -0.5
        ck, cv = (x.permute(0, 2, 1, 3).reshape(B * n, T, hd) for x in self.keys_and_values(context, context_position, frequencies))
        bk, bv = (x.permute(0, 3, 1, 2, 4).reshape(B * n * N, K, hd) for x in self.keys_and_values(u, position, frequencies))
        q = q.unflatten(-2, (n, G)).permute(0, 3, 1, 4, 2, 5)                               # [B, n, N, G, K, hd]
        far = torch.bmm(q.reshape(B * n, N * G * K, hd), ck.transpose(1, 2)).view(B, n, N, G * K, T)
        far = far.masked_fill(~visible[:, None, :, None], -1e30)
        near = torch.bmm(q.reshape(B * n * N, G * K, hd), bk.transpose(1, 2)).view(B, n, N, G * K, K)
        p = torch.softmax(torch.cat([far, near], -1), -1)
        o = torch.bmm(p[..., :T].reshape(B * n, N * G * K, T), cv).view(B, n, N, G, K, hd)
        o = o + torch.bmm(p[..., T:].reshape(B * n * N, G * K, K), bv).view(B, n, N, G, K, hd)
        return linear(o.permute(0, 2, 4, 1, 3, 5).reshape(B, N, K, n * G * hd), self.o_proj)

    def forward(self, h, *rest):
        h = h + self.attention(h, *rest).float()
        y = rms_norm(h, self.post_attention_layernorm)
        return h + linear(F.silu(linear(y, self.gate_proj).float()) * linear(y, self.up_proj).float(), self.down_proj).float()


class Drafter(nn.Module):
    def __init__(self, config, net):
        super().__init__()
        c = self.config = config
        d, r, V, taps = c["hidden_size"], c["markov_rank"], c["vocab_size"], len(c["target_layer_ids"])
        self.fc = nn.Parameter(torch.randn(d, taps * d) * (taps * d) ** -0.5)
        self.hidden_norm, self.norm = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        self.layers = nn.ModuleList([Layer(c) for _ in range(c["num_hidden_layers"])])
        self.markov_w1, self.markov_w2 = nn.Parameter(torch.randn(V, r) * 0.5), nn.Parameter(torch.randn(V, r) * 0.01)
        self.joint_proj, self.joint_bias = nn.Parameter(torch.randn(3 * r, 2 * r + d) * (2 * r + d) ** -0.5), nn.Parameter(torch.zeros(3 * r))
        self.confidence, self.confidence_bias = nn.Parameter(torch.zeros(1, d + r)), nn.Parameter(torch.zeros(1))
        frequencies = c["rope_parameters"]["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2).float() / c["head_dim"])
        self.register_buffer("frequencies", frequencies.to(torch.bfloat16).float())         # rounded as the engine does
        self.register_buffer("embed", net.embed.detach().clone(), persistent=False)
        self.register_buffer("unembed", net.unembed.detach().clone() / c["logits_mup_width_multiplier"], persistent=False)

    @torch.no_grad()
    def adapt_to(self, context):
        """Scales the columns of fc so that every tap begins with the same weight."""
        size = context.float().unflatten(-1, (len(self.config["target_layer_ids"]), -1)).pow(2).mean((0, 1, 3)).sqrt()
        self.fc.div_(size.repeat_interleave(self.config["hidden_size"]))

    def block_states(self, rows, anchors):
        """anchors [B, N] -> states after the last norm [B, N, K, d]."""
        c, K = self.config, self.config["block_size"]
        context = rms_norm(linear(rows.context, self.fc), self.hidden_norm)
        place = torch.arange(rows.ids.shape[1], device=anchors.device)
        visible = (rows.doc[:, None] == rows.doc.gather(1, anchors)[..., None]) & (place < anchors[..., None])
        position = rows.position.gather(1, anchors)[..., None] + torch.arange(K, device=anchors.device)
        ids = torch.full_like(position, c["mask_token_id"])
        ids[..., 0] = rows.ids.gather(1, anchors)
        h = F.embedding(ids, self.embed)
        for layer in self.layers:
            h = layer(h, position, context, rows.position, visible, self.frequencies)
        return rms_norm(h, self.norm)

    def head(self, h, previous):
        """previous [B, N, K]: the tokens before those to predict -> logits [B, N, K, V], log-odds of acceptance [B, N, K]."""
        r = self.config["markov_rank"]
        e = F.embedding(previous, self.markov_w1)
        parallel = linear(torch.cat([e, h], -1), self.joint_proj[:, r:], self.joint_bias).float()
        state, outs = torch.zeros_like(e[..., 0, :]), []
        for k in range(h.shape[-2]):
            gate, candidate, out = (parallel[..., k, :] + linear(state, self.joint_proj[:, :r]).float()).split(r, -1)
            gate = torch.sigmoid(gate)
            state = gate * state + (1 - gate) * torch.tanh(candidate)
            outs.append(torch.tanh(out))
        logits = torch.cat([h, torch.stack(outs, -2)], -1) @ torch.cat([self.unembed, self.markov_w2], 1).T
        confidence = (torch.cat([h, e], -1) @ self.confidence.T).squeeze(-1) + self.confidence_bias
        return logits, confidence

    def forward(self, rows, anchors):
        return self.head(self.block_states(rows, anchors), following(rows.ids, anchors, 0, self.config["block_size"]))


def following(x, anchors, first, count):
    """x [B, T] at anchor + first, ..., count of them -> [B, N, count]; beyond the row its last element."""
    at = (anchors[..., None] + first + torch.arange(count, device=x.device)).clamp(max=x.shape[1] - 1)
    return x.gather(1, at.flatten(1)).view(at.shape)


def choose_anchors(rows, count):
    """Random places from which the model goes on speaking [B, count], and which of them are real."""
    goes_on = rows.said[:, :-1] & rows.said[:, 1:] & (rows.doc[:, :-1] == rows.doc[:, 1:])
    luck = F.pad(goes_on * (torch.rand(goes_on.shape, device=goes_on.device) + 1e-3), (0, 1))
    best, anchors = luck.topk(count, 1)
    return anchors, best > 0


def labels_of(rows, anchors, K):
    """-> labels [B, N, K], and whether each is a token that the model says without a gap since the anchor."""
    inside = (anchors[..., None] + 1 + torch.arange(K, device=anchors.device)) < rows.ids.shape[1]
    same = following(rows.doc, anchors, 1, K) == rows.doc.gather(1, anchors)[..., None]
    valid = (following(rows.said.long(), anchors, 1, K) * inside * same).cumprod(-1)
    return following(rows.ids, anchors, 1, K), valid.bool()


@torch.no_grad()
def target_probabilities(net, rows, anchors, K):
    """The target's distribution of each label [B, N, K, V], padded ids have none."""
    at = (anchors[..., None] + torch.arange(K, device=anchors.device)).clamp(max=rows.ids.shape[1] - 1).flatten(1)
    final = rows.final.gather(1, at[..., None].expand(-1, -1, rows.final.shape[-1]))
    cap, valid = net.config["final_logit_softcapping"], net.config["unpadded_vocab_size"]
    logits = final.float() @ net.unembed.T / net.config["logits_mup_width_multiplier"]
    logits = cap * torch.tanh(logits / cap)
    logits[..., valid:] = -1e30
    return torch.softmax(logits, -1).view(*anchors.shape, K, -1)


def losses(logits, confidence, p, labels, valid, decay=4.0):
    """-> training loss, 1 - TV [B, N, K]. Later tokens of a block count less."""
    K = labels.shape[-1]
    weight = valid * torch.exp(-torch.arange(K, device=labels.device) / decay)
    total = weight.sum().clamp(min=1)
    logq = torch.log_softmax(logits.float(), -1)
    ce = -logq.gather(-1, labels[..., None]).squeeze(-1)
    l1 = (logq.exp() - p).abs().sum(-1)
    overlap = (1 - 0.5 * l1).detach()
    bce = F.binary_cross_entropy_with_logits(confidence, overlap.clamp(0, 1), reduction="none")
    return ((0.1 * ce + 0.9 * l1 + bce) * weight).sum() / total, overlap


# ---------------------------------------------------------------------------------------------- files
def tensors(drafter):
    out = {}

    def put(name, x):
        out[name] = ("BF16", safetensors.f32_to_bf16(x.detach().float().cpu().numpy()))

    for name in ("fc", "hidden_norm", "norm"):
        put(name + ".weight", getattr(drafter, name))
    for l, layer in enumerate(drafter.layers):
        for name, x in layer.named_parameters():
            part = "" if "layernorm" in name else "mlp." if name.split("_")[0] in ("gate", "up", "down") else "self_attn."
            put(f"layers.{l}.{part}{name}.weight", x)
    put("markov_head.markov_w1.weight", drafter.markov_w1)
    put("markov_head.markov_w2.weight", drafter.markov_w2)
    put("markov_head.joint_proj.weight", drafter.joint_proj)
    put("markov_head.joint_proj.bias", drafter.joint_bias)
    put("confidence_head.proj.weight", drafter.confidence)
    put("confidence_head.proj.bias", drafter.confidence_bias)
    return out


def write(drafter, folder):
    """FOLDER/mtp.safetensors and FOLDER/dspark_config.json."""
    os.makedirs(folder, exist_ok=True)
    safetensors.write(os.path.join(folder, "mtp.safetensors"), tensors(drafter))
    with open(os.path.join(folder, "dspark_config.json"), "w") as fh:
        json.dump(drafter.config, fh, indent=1)
        fh.write("\n")


@torch.no_grad()
def read(folder, net):
    with open(os.path.join(folder, "dspark_config.json")) as fh:
        drafter = Drafter(json.load(fh), net)
    files = safetensors.read(os.path.join(folder, "mtp.safetensors"))
    named = dict(drafter.named_parameters())
    by_file = {"markov_head.joint_proj.bias": "joint_bias", "confidence_head.proj.weight": "confidence", "confidence_head.proj.bias": "confidence_bias"}
    for name, t in files.items():
        plain = name[:-len(".weight")].replace("self_attn.", "").replace("mlp.", "").replace("markov_head.", "")
        named.pop(by_file.get(name, plain)).copy_(torch.from_numpy(safetensors.bf16_to_f32(t.array)))
    if named:
        raise ValueError(f"mtp.safetensors lacks {sorted(named)}")
    return drafter
