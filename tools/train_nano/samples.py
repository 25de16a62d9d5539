"""Lets nano answer many prompts at once, token by token, with its keys, values and convolution inputs kept between steps.

    writer = samples.Writer(net, slots=2048, length=512, stop=id)
    documents = writer.answer(prompts, temperatures, seconds=60)          # chat.py's format; None where the time was too short
A slot that finishes its document takes the next prompt, so every step works on all slots.
"""
import math
import time

import numpy as np
import torch
import torch.nn.functional as F

import chat
import model


class Step:
    """One token for every slot: ids, position [S] -> final states [S, H]."""

    def __init__(self, net, slots, length):
        c = self.c = net.config
        self.net, self.length = net, length
        device, L, W = net.embed.device, c["num_hidden_layers"], c["sconv_kernel_size"]
        kept = lambda *shape: torch.zeros(*shape, device=device).bfloat16()
        nkv, hd = c["num_key_value_heads"], c["head_dim"]
        self.keys, self.values = ([kept(slots, nkv, length, hd) for _ in range(L)] for _ in "kv")
        self.old = {part: [kept(slots, W, width) for _ in range(L)] for part, width in
                    (("k", nkv * hd), ("v", nkv * hd), ("attn", c["hidden_size"]), ("mlp", c["hidden_size"]))}
        self.w = {n: getattr(net, n).bfloat16().unbind(0) for n in ("wq", "wk", "wv", "wr", "wg", "wz", "wo", "table", "k_generator", "v_generator", "router")}
        self.w.update({n: getattr(net, n).bfloat16().float().unbind(0) for n in ("k_taps", "v_taps", "attn_taps", "mlp_taps")})
        w13, w2 = net.expert_weights()
        self.w["w13"] = [x.flatten(0, 1) for x in w13]
        self.w["w2"] = [x.transpose(0, 1).flatten(1).contiguous() for x in w2]
        three = [1 + 2 * (l in net.full) for l in range(L)]
        self.queries, self.gains = net.attn_query.split(three), net.attn_norm.bfloat16().float().split(three)
        self.embed, self.slot = net.embed.bfloat16(), torch.arange(slots, device=device)
        self.place, self.kv_head = torch.arange(length, device=device), torch.arange(nkv, device=device)

    def window(self, part, l, x):
        """The last inputs of a convolution, x [S, 1, C] the newest -> [S, W, C]."""
        old = self.old[part][l]
        old.copy_(torch.cat([old[:, 1:], x], 1))
        return old

    def conv(self, part, l, x, same):
        return model.short_conv(self.window(part, l, x), self.w[part + "_taps"][l], same)[:, -1:]

    def attend(self, l, full, q, r, gate, z, position):
        c = self.c
        S, nq, hd, nkv = q.shape[0], c["num_attention_heads"], c["head_dim"], c["num_key_value_heads"]
        q = (model.clip(q.float().reshape(S, nq, hd), c["q_l2_clip"]).bfloat16() / math.sqrt(hd)).reshape(S * nkv, nq // nkv, hd)
        r = model.clip(r.float().reshape(S, nq, -1), c["rel_l2_clip"]).bfloat16()
        score = torch.bmm(q, self.keys[l].flatten(0, 1).transpose(1, 2)).view(S, nq, self.length)
        distance = position[:, None] - self.place
        profile = r @ self.w["table"][l]
        extent = profile.shape[-1]
        bias = profile.gather(-1, distance.clamp(0, extent - 1)[:, None].expand(-1, nq, -1))
        near = distance < extent
        visible = distance >= 0
        if not full:
            visible = visible & (distance < c["sliding_window_size"])
        p, keep = model.softmax_and_sink(score, bias * near[:, None], visible[:, None], z)
        o = torch.bmm(p.view(S * nkv, nq // nkv, self.length), self.values[l].flatten(0, 1)).view(S, nq, hd)
        o = o.float() * keep[..., None] * torch.sigmoid(gate.float().reshape(S, nq, hd))
        return o.bfloat16().reshape(S, 1, nq * hd)

    def __call__(self, ids, position):
        c, w, net = self.c, self.w, self.net
        S, nkv, W, blocks = len(ids), c["num_key_value_heads"], c["sconv_kernel_size"], c["n_layers_per_attnres_block"]
        same = (position[:, None] >= torch.arange(W, device=ids.device)).float()[:, None].expand(S, W, W)
        P, = model.mix_norm([F.embedding(ids, self.embed)[:, None]], net.embed_norm[None], net.embed_norm.bfloat16().float()[None])
        bank, delta, sliding, dynamic = [], None, 0, 0
        for l in range(c["num_hidden_layers"]):
            full = l in net.full
            if l:
                P = (P.float() + self.conv("mlp", l - 1, delta, same).float()).bfloat16()
            sources = bank + [P]
            if l % blocks == 0:
                bank = bank + [P]
            x = model.mix_norm(sources, self.queries[l], self.gains[l])
            xq, xk, xv = x if full else x * 3
            q, r, gate, z = (F.linear(xq, w[n][l])[:, 0] for n in ("wq", "wr", "wg", "wz"))
            for part, source, limit, cache in (("k", xk, c["k_l2_clip"], self.keys[l]), ("v", xv, None, self.values[l])):
                taps = F.linear(source, w[part + "_generator"][dynamic]).unflatten(-1, (nkv, W)) if full else w[part + "_taps"][sliding]
                new = model.kv_final(self.window(part, l, F.linear(source, w["w" + part][l])), taps, same, nkv, limit)[:, -1]
                cache.index_put_((self.slot[:, None], self.kv_head, position[:, None]), new)
            dynamic, sliding = dynamic + full, sliding + (not full)
            a = F.linear(self.attend(l, full, q, r, gate, z, position), w["wo"][l])
            y = self.conv("attn", l, a, same)
            P = y if l % blocks == 0 else (P.float() + y.float()).bfloat16()
            y, = model.mix_norm(bank + [P], net.mlp_query[l:l + 1], net.mlp_norm[l:l + 1].bfloat16().float())
            weight, _ = model.route(y, w["router"][l], net.bias[l], c["num_experts_per_tok"], c["route_scale"])
            h = F.linear(y, w["w13"][l]).unflatten(-1, (weight.shape[-1], 2, -1))
            delta = F.linear(model.situ_weighted(h, weight, c["situ_beta"], c["situ_linear_beta"]).flatten(-2), w["w2"][l])
        P = (P.float() + self.conv("mlp", c["num_hidden_layers"] - 1, delta, same).float()).bfloat16()
        h, = model.mix_norm(bank + [P], net.out_query, net.norm.bfloat16().float()[None])
        return h[:, 0]


class Writer:
    def __init__(self, net, slots, length, stop):
        self.net, self.slots, self.length, self.stop = net, slots, length, stop
        self.step, self.device = Step(net, slots, length), net.embed.device
        self.unembed = net.unembed[:net.config["unpadded_vocab_size"]].bfloat16().float()

    def load(self, prompts, temperatures):
        """The last row of the table is for slots that have nothing to do."""
        count, device = len(prompts), self.device
        table = np.zeros((count + 1, self.length), np.int64)
        for row, p in zip(table, prompts):
            row[:len(p)] = p & chat.ID_MASK
        self.table = torch.from_numpy(table).to(device)
        self.prompt_length = torch.tensor([len(p) for p in prompts] + [self.length], device=device)
        self.total = torch.zeros(count + 1, dtype=torch.long, device=device)
        self.temperature = torch.tensor(list(temperatures) + [0.0], device=device)
        self.row = torch.arange(self.slots, device=device).clamp(max=count)
        self.position = torch.zeros(self.slots, dtype=torch.long, device=device)
        self.next = torch.tensor(min(self.slots, count), device=device)

    @torch.no_grad()
    def advance(self):
        cap, after = self.net.config["final_logit_softcapping"], self.position + 1
        logits = self.step(self.table[self.row, self.position], self.position).float() @ self.unembed.T
        logits = cap * torch.tanh(logits / cap)
        noise = -torch.log(torch.empty_like(logits).exponential_().clamp(min=1e-30))       # Gumbel: the maximum is a sample
        choice = (logits + noise * self.temperature[self.row, None]).argmax(-1)
        own = after >= self.prompt_length[self.row]
        self.table.index_put_((self.row, after), torch.where(own, choice, self.table[self.row, after]))
        ended = (own & (choice == self.stop)) | (after == self.length - 1)
        self.total.index_put_((self.row,), torch.where(ended, after + 1, self.total[self.row]))
        fresh = (self.next + ended.cumsum(0) - 1).clamp(max=len(self.total) - 1)
        self.row.copy_(torch.where(ended, fresh, self.row))
        self.position.copy_(torch.where(ended, torch.zeros_like(after), after))
        self.next.add_(ended.sum()).clamp_(max=len(self.total) - 1)

    def captured(self):
        """One step as a CUDA graph; its three trial runs count as steps."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.advance()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.advance()
        except RuntimeError as error:
            print(f"no CUDA graph, answers come more slowly: {error}", flush=True)
            return self.advance
        return graph.replay

    def answer(self, prompts, temperatures, seconds=math.inf):
        begin, steps = time.time(), 0
        self.load(prompts, temperatures)
        advance = self.captured() if self.device.type == "cuda" else self.advance
        idle = len(prompts)
        while time.time() - begin < seconds and bool((self.row < idle).any()):
            for _ in range(16):
                advance()
            steps += 16
        table, total = self.table.cpu().numpy().astype(np.uint16), self.total.cpu().numpy()
        spent = time.time() - begin
        print(f"{int((total[:-1] > 0).sum())} of {idle} answers in {spent:.0f} s, {steps} steps, {steps * self.slots / spent / 1e3:.0f} ktok/s", flush=True)
        out = []
        for p, ids, n in zip(prompts, table, total):
            out.append(np.concatenate([p, ids[len(p):n] | chat.TARGET]).astype(np.uint16) if n else None)
        return out


def packed(documents, length):
    """Rows of whole documents, in their order; a row's rest is a document of nothing."""
    rows, row, used = [], np.zeros(length, np.uint16), 0
    for doc in documents:
        if used + len(doc) > length:
            rows.append(row)
            if used < length:
                row[used] |= chat.START
            row, used = np.zeros(length, np.uint16), 0
        row[used:used + len(doc)] = doc
        used += len(doc)
    if used < length:
        row[used] |= chat.START
    return np.stack(rows + [row])
