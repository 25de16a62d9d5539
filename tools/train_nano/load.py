"""Reads an exported checkpoint of nano back into the training network: load.network("models/nano")."""
import json
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "reference"))
import model
import quantize
import safetensors


def plain(t):
    return torch.from_numpy(safetensors.bf16_to_f32(t.array) if t.dtype == "BF16" else t.array.copy())


def experts(files, name, nvfp4):
    bits = lambda suffix: torch.from_numpy(files[name + suffix].array.copy())
    if nvfp4:
        return quantize.nvfp4_decode(bits(""), bits("_scale"), bits("_amax"), float(files[name + "_outer_scale_denominator"].array))
    return quantize.mxfp8_decode(bits(""), bits("_scale"))


def config(folder):
    """config.json as model.Net reads it."""
    with open(os.path.join(folder, "config.json")) as fh:
        c = json.load(fh)["text_config"]
    with open(os.path.join(folder, "hf_quant_config.json")) as fh:
        layers = json.load(fh)["quantization"]["quantized_layers"]
    return {**c, "nvfp4_layers": sum(layer["quant_algo"] == "NVFP4" for layer in layers.values())}


def state(folder):
    """The parameters of model.Net, stacked over the layers; the inverse of export.tensors."""
    c, files, prefix = config(folder), safetensors.read(folder), "model.llm."
    get = lambda name: plain(files[prefix + name])
    out = {name: get(name + ".weight") for name in ("embed", "unembed", "embed_norm", "norm")}
    out["out_query"] = get("output_res_query")
    stacks = {}
    add = lambda name, x: stacks.setdefault(name, []).append(x)
    for l in range(c["num_hidden_layers"]):
        q, full = f"layers.{l}.", l not in c["local_layer_ids"]
        for j in range(3 if full else 1):
            add("attn_query", get(q + "attn_res_query")[j] if l else torch.zeros(c["hidden_size"]))
            add("attn_norm", get(q + (f"attn_norms.{j}" if full else "attn_norm") + ".weight"))
        add("mlp_query", get(q + "mlp_res_query")[0])
        add("mlp_norm", get(q + "mlp_norm.weight"))
        for part, name in (("wq", "wq_du"), ("wk", "wk_dv"), ("wv", "wv_dv"), ("wr", "wr_du"), ("wg", "wg_du"), ("wz", "wz_du"), ("wo", "wo_ud")):
            add(part, get(f"{q}attn.{name}.weight"))
        add("table", get(q + "attn.relative_table"))
        for part in "kv":
            if full:
                add(part + "_generator", get(f"{q}attn.{part}_sconv_proj.weight"))
            else:
                add(part + "_taps", get(f"{q}attn.{part}_sconv.weight")[:, 0])
        add("attn_taps", get(q + "attn_sconv.weight")[:, 0])
        add("mlp_taps", get(q + "mlp_sconv.weight")[:, 0])
        add("router", get(q + "mlp.gate.weight"))
        add("bias", get(q + "mlp.gate.bias"))
        w13, w2 = (experts(files, f"{prefix}{q}mlp.experts.{part}_weight", l < c["nvfp4_layers"]) for part in ("w13", "w2"))
        add("w13", w13.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2))                # gates and ups take turns in the file
        add("w2", w2)
    return {**out, **{name: torch.stack(x) for name, x in stacks.items()}}


def network(folder, device="cpu"):
    """Frozen, with the experts as the file holds them."""
    net = model.Net(config(folder))
    net.load_state_dict(state(folder))
    return net.requires_grad_(False).to(device)
