#include "model/cache_layout.h"

#include <algorithm>

namespace nib {

namespace {

using Kind = CacheSpec::Kind;

int64_t kv_row(const LayerConfig& layer) { return layer.num_kv_heads * layer.head_dim; }

CacheSpec kv_spec(const ModelConfig& config, Kind kind, int64_t block_size, int64_t element_bytes) {
  CacheSpec spec{kind, {}, block_size, 0, 0, {}};
  for (int64_t l = 0; l < config.num_layers(); ++l) {
    const LayerConfig& layer = config.layers[l];
    if (layer.full != (kind == Kind::kFull)) continue;
    spec.layers.push_back(l);
    spec.window = std::max(spec.window, layer.window);
    const int64_t part = block_size * kv_row(layer) * element_bytes;
    spec.part_bytes.insert(spec.part_bytes.end(), {part, part});  // K, V
    spec.bytes_per_block += 2 * part;
  }
  return spec;
}

CacheSpec conv_spec(const ModelConfig& config, int64_t ring, int64_t element_bytes) {
  CacheSpec spec{Kind::kConv, {}, ring, 0, 0, {}};
  for (int64_t l = 0; l < config.num_layers(); ++l) {
    spec.layers.push_back(l);
    const int64_t kv = ring * kv_row(config.layers[l]) * element_bytes,
                  hidden = ring * config.hidden_size * element_bytes;
    spec.part_bytes.insert(spec.part_bytes.end(), {kv, kv, hidden, hidden});  // in the order of ConvStream
    spec.bytes_per_block += 2 * (kv + hidden);
  }
  return spec;
}

// The last W-1 inputs and those that may be taken back.
int64_t ring_rows(const ModelConfig& config, const LoadOptions& options) {
  return std::max<int64_t>(1, config.conv_width - 1 + options.max_rejected_rows);
}

int64_t group_of(std::span<const CacheSpec> specs, Kind kind) {
  return std::find_if(specs.begin(), specs.end(), [&](const CacheSpec& s) { return s.kind == kind; }) - specs.begin();
}

}  // namespace

std::vector<CacheSpec> make_cache_specs(const ModelConfig& config, const LoadOptions& options, int64_t element_bytes) {
  std::vector<CacheSpec> specs = {kv_spec(config, Kind::kFull, options.kv_block_size, element_bytes),
                                  kv_spec(config, Kind::kWindow, options.kv_block_size, element_bytes),
                                  conv_spec(config, ring_rows(config, options), element_bytes)};
  std::erase_if(specs, [](const CacheSpec& s) { return s.bytes_per_block == 0; });
  return specs;
}

template <class T>
CacheLayout<T>::CacheLayout(const ModelConfig& config, const LoadOptions& options)
    : specs_(make_cache_specs(config, options, sizeof(T))), conv_group_(group_of(specs_, Kind::kConv)) {
  const int64_t ring = ring_rows(config, options);
  std::vector<int64_t> taken(specs_.size(), 0);  // elements per block
  for (const LayerConfig& layer : config.layers) {
    Place p;
    p.group = group_of(specs_, layer.full ? Kind::kFull : Kind::kWindow);
    p.kv_offset = taken[p.group];
    p.kv_heads = layer.num_kv_heads;
    p.head_dim = layer.head_dim;
    taken[p.group] += 2 * options.kv_block_size * kv_row(layer);
    const int64_t channels[4] = {kv_row(layer), kv_row(layer), config.hidden_size, config.hidden_size};
    for (int s = 0; s < 4; ++s) {
      p.channels[s] = channels[s];
      p.conv_offset[s] = taken[conv_group_];
      taken[conv_group_] += ring * channels[s];
    }
    places_.push_back(p);
  }
}

template <class T>
PagedKv<T> CacheLayout<T>::kv(const KvCache& cache, std::span<const View<const int32_t, 2>> block_tables,
                              int64_t layer) const {
  const Place& p = places_[layer];
  const int64_t blocks = cache.num_blocks(p.group), block_size = specs_[p.group].block_size;
  const typename View<T, 4>::Shape shape = {blocks, block_size, p.kv_heads, p.head_dim};
  const View<T, 4> k(reinterpret_cast<T*>(cache.data(p.group)) + p.kv_offset * blocks, shape);
  return {k, View<T, 4>(k.data() + k.size(), shape), block_tables[p.group]};
}

template <class T>
ConvState<T> CacheLayout<T>::conv(const KvCache& cache, std::span<const int32_t> slots, int64_t layer,
                                  ConvStream stream) const {
  const Place& p = places_[layer];
  const int s = static_cast<int>(stream);
  const int64_t num_slots = cache.num_blocks(conv_group_), ring = specs_[conv_group_].block_size;
  T* data = reinterpret_cast<T*>(cache.data(conv_group_)) + p.conv_offset[s] * num_slots;
  return {View<T, 3>(data, {num_slots, ring, p.channels[s]}), slots};
}

template <class T>
std::vector<int32_t> CacheLayout<T>::slots_of(std::span<const View<const int32_t, 2>> block_tables) const {
  const View<const int32_t, 2> table = block_tables[conv_group_];
  std::vector<int32_t> slots(table.dim(0));
  for (int64_t s = 0; s < table.dim(0); ++s) slots[s] = table(s, 0);
  return slots;
}

template class CacheLayout<float>;
template class CacheLayout<bf16>;

}  // namespace nib
