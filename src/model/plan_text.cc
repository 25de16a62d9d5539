// The plan as people and programs read it.
#include "model/plan.h"

namespace nib {

namespace {

// In units of 10^9 and 10^6; the JSON form has every byte.
std::string size(int64_t bytes) {
  const double b = static_cast<double>(bytes);
  if (b >= 1e9) return fmt::format("{:.2f} GB", b / 1e9);
  if (b >= 1e6) return fmt::format("{:.2f} MB", b / 1e6);
  return fmt::format("{} B", bytes);
}

// Weights are compared in GB down to a tenth.
std::string weight_size(int64_t bytes) {
  return bytes >= 100'000'000 ? fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9) : size(bytes);
}

struct Table {
  std::string out;
  void title(std::string_view text) { out += fmt::format("\n{}\n", text); }
  void row(std::string_view label, std::string_view a, std::string_view b = "") {
    out += fmt::format("  {:<34}{:>14}{:>14}\n", label, a, b);
  }
};

}  // namespace

std::string MemoryPlan::text() const {
  const int64_t ranks = options.tensor_parallel_size;
  int64_t all = 0, touched_all = 0;
  Table t;
  t.out = fmt::format("{} rank{}, {} sequence{} of {} tokens, {} rows a step\n", ranks, ranks == 1 ? "" : "s",
                      options.max_num_seqs, options.max_num_seqs == 1 ? "" : "s", options.max_model_len,
                      options.max_num_batched_tokens);
  t.title("Weights");
  t.row("", "all", "one rank");
  for (int k = 0; k < kNumTensorKinds; ++k) {
    all += weights_all_ranks[k];
    if (weights_all_ranks[k])
      t.row(name(static_cast<TensorKind>(k)), weight_size(weights_all_ranks[k]), weight_size(weights[k]));
  }
  t.row("sum", size(all), size(weight_bytes()));
  if (nvfp4_experts_all_ranks) t.row("  of the experts NVFP4", size(nvfp4_experts_all_ranks));
  if (mxfp8_experts_all_ranks) t.row("  of the experts MXFP8", size(mxfp8_experts_all_ranks));
  t.row("copies made while loading", "", size(converted));

  t.title("Cache");
  t.row("", "unit", "one rank");
  t.row("full layers, a token", size(full_per_token), "");
  t.row("sliding layers, a window", size(window_per_sequence), "");
  t.row("convolutions, a sequence", size(conv_per_sequence), "");
  if (bank_per_token) t.row("depth bank, a row of a step", size(bank_per_token), "");
  t.row("full layers, reserved", "", size(kv_full));
  t.row("sliding layers, reserved", "", size(kv_window));
  t.row("convolutions, reserved", "", size(kv_conv));

  t.title("Memory of one rank");
  t.row("weights", "", size(weight_bytes() + converted));
  t.row("cache", "", size(cache_bytes()));
  t.row("activations", "", size(activations));
  t.row("total", "", size(total_bytes()));

  t.title("Touched by one token at batch 1");
  t.row("", "all", "one rank");
  for (int k = 0; k < kNumTensorKinds; ++k) {
    touched_all += touched_all_ranks[k];
    if (touched_all_ranks[k])
      t.row(name(static_cast<TensorKind>(k)), weight_size(touched_all_ranks[k]), weight_size(touched[k]));
  }
  t.row("weights", size(touched_all), size(touched_bytes()));
  t.row(fmt::format("cache at {} tokens", options.max_model_len), size(touched_cache * ranks), size(touched_cache));
  if (options.bandwidth_gb_s > 0)
    t.row(fmt::format("time at {:g} GB/s a rank", options.bandwidth_gb_s), "", fmt::format("{:.3f} ms", token_ms()));
  return t.out;
}

Json MemoryPlan::json() const {
  Json kinds = Json::object(), touched_kinds = Json::object();
  for (int k = 0; k < kNumTensorKinds; ++k) {
    const std::string key(name(static_cast<TensorKind>(k)));
    if (!weights_all_ranks[k]) continue;
    kinds[key] = {{"all_bytes", weights_all_ranks[k]}, {"rank_bytes", weights[k]}};
    touched_kinds[key] = {{"all_bytes", touched_all_ranks[k]}, {"rank_bytes", touched[k]}};
  }
  Json out = {{"tensor_parallel_size", options.tensor_parallel_size},
              {"max_model_len", options.max_model_len},
              {"max_num_seqs", options.max_num_seqs},
              {"max_num_batched_tokens", options.max_num_batched_tokens},
              {"weights", kinds},
              {"experts_nvfp4_all_bytes", nvfp4_experts_all_ranks},
              {"experts_mxfp8_all_bytes", mxfp8_experts_all_ranks},
              {"weights_rank_bytes", weight_bytes()},
              {"converted_bytes", converted},
              {"cache",
               {{"full_bytes_per_token", full_per_token},
                {"window_bytes_per_sequence", window_per_sequence},
                {"conv_bytes_per_sequence", conv_per_sequence},
                {"bank_bytes_per_row", bank_per_token},
                {"full_bytes", kv_full},
                {"window_bytes", kv_window},
                {"conv_bytes", kv_conv}}},
              {"activations_bytes", activations},
              {"total_rank_bytes", total_bytes()},
              {"touched", touched_kinds},
              {"touched_rank_bytes", touched_bytes()},
              {"touched_cache_rank_bytes", touched_cache}};
  if (options.bandwidth_gb_s > 0) out["token_ms"] = token_ms();
  return out;
}

}  // namespace nib
