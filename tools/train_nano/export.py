"""Turns the training state of nano into a checkpoint: export.py STATE.pt [MODEL_DIR].

Writes config.json, hf_quant_config.json, generation_config.json, the shards and their index. Experts are stored as NVFP4
(four-over-six) in the first layers and as MXFP8 in the last ones, everything else as BF16 or F32.
"""
import json
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "reference"))
import quantize
import safetensors

SHARD_LIMIT_BYTES = 14_500_000

NANO = dict(
    vocab_size=8256, unpadded_vocab_size=8210, hidden_size=224, num_hidden_layers=12, num_attention_heads=4, num_key_value_heads=2,
    head_dim=64, local_layer_ids=[0, 1, 2, 3, 4, 6, 7, 8, 9, 10], sliding_window_size=256, rel_extent=256, d_rel=16, sconv_kernel_size=4,
    n_layers_per_attnres_block=6, use_value_norm_no_gamma=True, rms_norm_eps=1e-6, log_scaling_n_floor=4096, log_scaling_alpha=0.1,
    n_routed_experts=16, num_experts_per_tok=4, moe_intermediate_size=96, route_scale=2.5, situ_beta=4.0, situ_linear_beta=16.0,
    final_logit_softcapping=30.0, logits_mup_width_multiplier=1.0, q_l2_clip=14.0, k_l2_clip=14.0, rel_l2_clip=6.0, model_max_length=262144)
NVFP4_LAYERS = 10


def training_config():
    return {**NANO, "nvfp4_layers": NVFP4_LAYERS}


def checkpoint_config(c, eos_token_id):
    text = {"model_type": "inkling2_text", **{k: v for k, v in c.items() if k != "nvfp4_layers"}, "eos_token_id": eos_token_id}
    return {"architectures": ["Inkling2ForConditionalGeneration"], "model_type": "inkling2", "dtype": "bfloat16", "eos_token_id": eos_token_id,
            "text_config": text, "quantization_config": {"quant_method": "modelopt"}}


def quant_config(c):
    layers = {f"model.llm.layers.{l}.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16} if l < c["nvfp4_layers"] else
              {"quant_algo": "MXFP8", "block_size": [32, 32]} for l in range(c["num_hidden_layers"])}
    return {"producer": {"name": "nib"}, "quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "none", "quantized_layers": layers}}


def tensors(state, c):
    """state: the parameters of model.Net, stacked over layers -> {checkpoint name: (dtype, numpy array)}."""
    out, p = {}, "model.llm."
    state = {k: v.detach().float().cpu() for k, v in state.items()}

    def bf16(name, x):
        out[p + name] = ("BF16", safetensors.f32_to_bf16(x.numpy()))

    def f32(name, x):
        out[p + name] = ("F32", x.contiguous().numpy())

    for name in ("embed", "unembed", "embed_norm", "norm"):
        bf16(name + ".weight", state[name])
    f32("output_res_query", state["out_query"])
    attn_row = sliding = dynamic = 0
    for l in range(c["num_hidden_layers"]):
        q, full = f"layers.{l}.", l not in c["local_layer_ids"]
        rows = 3 if full else 1
        if l:
            f32(q + "attn_res_query", state["attn_query"][attn_row:attn_row + rows])
        for j in range(rows):
            bf16(q + (f"attn_norms.{j}" if full else "attn_norm") + ".weight", state["attn_norm"][attn_row + j])
        attn_row += rows
        f32(q + "mlp_res_query", state["mlp_query"][l:l + 1])
        bf16(q + "mlp_norm.weight", state["mlp_norm"][l])
        for part, name in (("wq", "wq_du"), ("wk", "wk_dv"), ("wv", "wv_dv"), ("wr", "wr_du"), ("wg", "wg_du"), ("wz", "wz_du"), ("wo", "wo_ud")):
            bf16(f"{q}attn.{name}.weight", state[part][l])
        bf16(q + "attn.relative_table", state["table"][l])
        for part in "kv":
            if full:
                bf16(f"{q}attn.{part}_sconv_proj.weight", state[part + "_generator"][dynamic])
            else:
                bf16(f"{q}attn.{part}_sconv.weight", state[part + "_taps"][sliding][:, None])
        dynamic, sliding = dynamic + full, sliding + (not full)
        bf16(q + "attn_sconv.weight", state["attn_taps"][l][:, None])
        bf16(q + "mlp_sconv.weight", state["mlp_taps"][l][:, None])
        bf16(q + "mlp.gate.weight", state["router"][l])
        f32(q + "mlp.gate.bias", state["bias"][l])
        for part in ("w13", "w2"):
            name, w = f"{p}{q}mlp.experts.{part}_weight", state[part][l]
            if part == "w13":                                # gates and ups take turns in the file
                w = w.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
            if l < c["nvfp4_layers"]:
                packed, scale, amax = quantize.nvfp4_encode(w)
                out[name], out[name + "_scale"], out[name + "_amax"] = ("U8", packed.numpy()), ("F8_E4M3", scale.numpy()), ("F32", amax.numpy())
                out[name + "_outer_scale_denominator"] = ("F32", torch.tensor(quantize.DENOMINATOR).numpy())
            else:
                codes, scale = quantize.mxfp8_encode(w)
                out[name], out[name + "_scale"] = ("F8_E4M3", codes.numpy()), ("F8_E8M0", scale.numpy())
    return out


def write_checkpoint(state, c, folder, eos_token_id):
    for name in os.listdir(folder):
        if name.endswith(".safetensors") and name.startswith("model"):
            os.remove(os.path.join(folder, name))
    safetensors.write_shards(folder, tensors(state, c), SHARD_LIMIT_BYTES)
    files = {"config.json": checkpoint_config(c, eos_token_id), "hf_quant_config.json": quant_config(c),
             "generation_config.json": {"temperature": 1.0, "top_p": 1.0, "eos_token_id": eos_token_id}}
    for name, data in files.items():
        with open(os.path.join(folder, name), "w") as fh:
            json.dump(data, fh, indent=1)
            fh.write("\n")


def main(state_file, folder="models/nano"):
    saved = torch.load(state_file, map_location="cpu")
    with open(os.path.join(folder, "tokenizer.json")) as fh:
        control = {t["content"]: t["id"] for t in json.load(fh)["added_tokens"]}
    write_checkpoint(saved["net"], training_config(), folder, control["<|content_model_end_sampling|>"])
    total = sum(os.path.getsize(os.path.join(folder, n)) for n in os.listdir(folder) if n.endswith(".safetensors"))
    print(f"wrote {folder}: {total} bytes of weights")


if __name__ == "__main__":
    main(*sys.argv[1:])
