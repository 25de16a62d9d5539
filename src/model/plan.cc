#include "model/plan.h"

#include <algorithm>
#include <numeric>

#include "model/cache_layout.h"
#include "model/inkling.h"
#include "model/inkling2.h"
#include "model/quant_config.h"

namespace nib {

namespace fs = std::filesystem;

namespace {

constexpr double kGb = 1e9;

int64_t count(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t stored_bytes(const TensorSpec& s, WeightFormat format) {
  const int64_t n = count(s.shapes[0]);
  switch (format) {
    case WeightFormat::kNvfp4:
      return n / 2 + n / 16;
    case WeightFormat::kMxfp8:
      return n + n / 32;
    case WeightFormat::kF32:
      return 4 * n;
    case WeightFormat::kBF16:
      return 2 * n;
  }
  NIB_CHECK(false, "format {}", static_cast<int>(format));
}

WeightItem item(TensorSpec spec, WeightFormat format, int64_t bytes, int64_t small_bytes) {
  WeightItem w{.spec = std::move(spec), .format = format};
  (w.spec.shard == Shard::kReplicated ? w.replicated_bytes : w.sharded_bytes) = bytes;
  w.replicated_bytes += small_bytes;
  return w;
}

WeightItem item_of(const BoundTensor& b) {
  const int64_t large = b.info->bytes + (b.scales ? b.scales->bytes : 0);
  WeightItem w = item(b.spec, b.format, large, b.bytes() - large);
  const bool apart = b.spec.role == Role::kDenseGate || b.spec.role == Role::kDenseUp ||
                     b.spec.role == Role::kSharedGate || b.spec.role == Role::kSharedUp;
  if (b.info->dtype == DType::kF16) w.converted_bytes += 2 * b.info->bytes;
  if (b.spec.halves || apart) w.converted_bytes += b.info->dtype == DType::kF16 ? 2 * large : large;
  return w;
}

// Without a checkpoint: the usual tensors, experts in the declared precision with an outer scale each.
WeightItem item_of(TensorSpec spec, const DeclaredPrecision& declared) {
  const WeightFormat format = spec.packable ? declared.experts_format(spec.layer)
                              : spec.f32    ? WeightFormat::kF32
                                            : WeightFormat::kBF16;
  const int64_t bytes = stored_bytes(spec, format);
  const int64_t outer = format == WeightFormat::kNvfp4 ? 4 * (spec.shapes[0][0] + 1) : 0;
  return item(std::move(spec), format, bytes, outer);
}

Status check_divides(const ModelConfig& c, const std::vector<WeightItem>& weights, int64_t ranks) {
  for (const LayerConfig& l : c.layers) {
    if (l.num_kv_heads % ranks)
      return invalid("--tensor-parallel-size {} does not divide the {} KV heads", ranks, l.num_kv_heads);
    if (l.num_heads % ranks)
      return invalid("--tensor-parallel-size {} does not divide the {} query heads", ranks, l.num_heads);
  }
  if (c.hidden_size % ranks)
    return invalid("--tensor-parallel-size {} does not divide the hidden size {}", ranks, c.hidden_size);
  for (const WeightItem& w : weights) {
    const int64_t group = w.format == WeightFormat::kNvfp4 ? 16 : w.format == WeightFormat::kMxfp8 ? 32 : 1;
    if (w.spec.packable && c.expert_width % (ranks * group))
      return invalid("--tensor-parallel-size {} cuts the expert width {} within a group of {} scales ({})", ranks,
                     c.expert_width, group, w.spec.names[0]);
  }
  return {};
}

// The share of a tensor that one token reads.
double touched_share(const WeightItem& w, const ModelConfig& c) {
  if (w.spec.kind == TensorKind::kExpert) return static_cast<double>(c.top_k) / static_cast<double>(c.num_experts);
  if (w.spec.kind == TensorKind::kEmbed) return 1.0 / static_cast<double>(c.vocab_size);
  return 1;
}

void add_weights(const ModelShape& shape, MemoryPlan& p) {
  const int64_t ranks = p.options.tensor_parallel_size;
  for (const WeightItem& w : shape.weights) {
    const auto kind = static_cast<size_t>(w.spec.kind);
    const int64_t all = w.sharded_bytes + w.replicated_bytes;
    const int64_t rank = (w.sharded_bytes + ranks - 1) / ranks + w.replicated_bytes;
    const double share = touched_share(w, shape.config);
    p.weights_all_ranks[kind] += all;
    p.weights[kind] += rank;
    p.touched_all_ranks[kind] += static_cast<int64_t>(static_cast<double>(all) * share);
    p.touched[kind] += static_cast<int64_t>(static_cast<double>(rank) * share);
    p.converted += w.converted_bytes;
    if (w.spec.packable && w.format == WeightFormat::kNvfp4) p.nvfp4_experts_all_ranks += all;
    if (w.spec.packable && w.format == WeightFormat::kMxfp8) p.mxfp8_experts_all_ranks += all;
  }
}

void add_cache(const ModelConfig& c, MemoryPlan& p) {
  const PlanOptions& o = p.options;
  const int64_t block = o.load.kv_block_size, ranks = o.tensor_parallel_size;
  const auto blocks = [&](int64_t tokens) { return (tokens + block - 1) / block; };
  for (const CacheSpec& s : make_cache_specs(c, o.load, o.load.f32 ? 4 : 2)) {
    const int64_t bytes = s.bytes_per_block / ranks;
    if (s.kind == CacheSpec::Kind::kFull) {
      p.full_per_token = bytes / block;
      p.kv_full = o.max_num_seqs * blocks(o.max_model_len) * bytes;
    } else if (s.kind == CacheSpec::Kind::kWindow) {
      const int64_t tokens = std::min(s.window, o.max_model_len);
      p.window_per_sequence = bytes / block * s.window;
      // a window may begin and end within a block; a step's new rows are there beside the old ones
      p.kv_window = (o.max_num_seqs * (blocks(tokens) + 1) + blocks(o.max_num_batched_tokens)) * bytes;
    } else {
      p.conv_per_sequence = bytes;
      p.kv_conv = o.max_num_seqs * bytes;
    }
  }
  p.touched_cache = p.full_per_token * o.max_model_len + p.window_per_sequence + p.conv_per_sequence;
}

// The constants of one rank: heads and widths are shared, the hidden size is not.
ModelConfig rank_config(ModelConfig c, int64_t ranks) {
  for (LayerConfig& l : c.layers) {
    l.num_heads /= ranks;
    l.num_kv_heads /= ranks;
  }
  c.expert_width /= ranks;
  c.dense_width /= ranks;
  return c;
}

void add_activations(const ModelConfig& c, MemoryPlan& p) {
  const PlanOptions& o = p.options;
  const int64_t element = o.load.f32 ? 4 : 2, logit_rows = std::min(o.max_num_seqs, o.max_num_batched_tokens);
  const ModelConfig rank = rank_config(c, o.tensor_parallel_size);
  const bool second = c.generation == Generation::kInkling2;
  const auto workspace = second ? inkling2_workspace_bytes : inkling_workspace_bytes;
  p.activations = workspace(rank, o.max_num_batched_tokens, logit_rows, o.num_threads, element) +
                  logit_rows * c.unpadded_vocab_size * 4;
  const int64_t states = (c.num_layers() + c.layers_per_block - 1) / std::max<int64_t>(1, c.layers_per_block) + 1;
  if (second) p.bank_per_token = states * c.hidden_size * element;
}

int64_t sum(const std::array<int64_t, kNumTensorKinds>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

}  // namespace

Result<ModelShape> ModelShape::load(const fs::path& folder_or_config) {
  ModelShape shape;
  NIB_ASSIGN(shape.config, ModelConfig::load(folder_or_config));
  std::error_code error;
  shape.from_checkpoint = fs::is_directory(folder_or_config, error);
  if (shape.from_checkpoint) {
    NIB_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(folder_or_config));
    NIB_ASSIGN(const Binding binding, bind_tensors(shape.config, checkpoint));
    for (const auto& [key, b] : binding.tensors)
      if (b.present()) shape.weights.push_back(item_of(b));
    return shape;
  }
  NIB_ASSIGN(const DeclaredPrecision declared, DeclaredPrecision::load(folder_or_config));
  for (TensorSpec& spec : tensor_table(shape.config, nullptr))
    if (!spec.optional || spec.usual) shape.weights.push_back(item_of(std::move(spec), declared));
  return shape;
}

Result<MemoryPlan> plan_memory(const ModelShape& shape, const PlanOptions& options) {
  MemoryPlan p;
  p.options = options;
  if (options.max_model_len > shape.config.max_position)
    return invalid("--max-model-len {} is more than the {} positions of the model", options.max_model_len,
                   shape.config.max_position);
  if (options.max_model_len == 0) p.options.max_model_len = shape.config.max_position;
  NIB_TRY(check_divides(shape.config, shape.weights, options.tensor_parallel_size));
  add_weights(shape, p);
  add_cache(shape.config, p);
  add_activations(shape.config, p);
  return p;
}

int64_t MemoryPlan::weight_bytes() const { return sum(weights); }
int64_t MemoryPlan::touched_bytes() const { return sum(touched); }

double MemoryPlan::token_ms() const {
  if (options.bandwidth_gb_s <= 0) return 0;
  return static_cast<double>(touched_bytes() + touched_cache) / (options.bandwidth_gb_s * kGb) * 1e3;
}

Status check_fits(const MemoryPlan& p, int64_t limit_bytes) {
  if (p.total_bytes() <= limit_bytes) return {};
  return invalid(
      "the model needs {:.2f} GB ({:.2f} weights, {:.2f} cache, {:.2f} activations) but {:.2f} GB are there; lower "
      "--max-model-len or --max-num-seqs, or take a larger machine",
      static_cast<double>(p.total_bytes()) / kGb, static_cast<double>(p.weight_bytes() + p.converted) / kGb,
      static_cast<double>(p.cache_bytes()) / kGb, static_cast<double>(p.activations) / kGb,
      static_cast<double>(limit_bytes) / kGb);
}

}  // namespace nib
