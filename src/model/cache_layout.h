// Where each layer's state lies inside the cache groups, and the views through which operations read it.
//   CacheLayout<bf16> layout(config, options);
//   PagedKv<bf16> kv = layout.kv(cache, in.block_tables, layer);
//   ConvState<bf16> ring = layout.conv(cache, slots, layer, ConvStream::kKey);
#pragma once

#include <span>
#include <vector>

#include "compute/ops/attention.h"
#include "compute/ops/short_conv.h"
#include "model/cache.h"
#include "model/config.h"
#include "model/network.h"

namespace nib {

// The groups of a network: full layers, sliding layers, convolution rings; a kind without layers is left out.
// element_bytes: of the activation type.
std::vector<CacheSpec> make_cache_specs(const ModelConfig& config, const LoadOptions& options, int64_t element_bytes);

// The short convolutions of a layer, in the order in which they run.
enum class ConvStream { kKey, kValue, kAttention, kMlp };

// A KV group holds for each of its layers K, then V: [blocks, block_size, kv_heads, head_dim].
// The convolution group holds for each layer and stream: [slots, ring, channels].
template <class T>
class CacheLayout {
 public:
  CacheLayout(const ModelConfig& config, const LoadOptions& options);

  const std::vector<CacheSpec>& specs() const { return specs_; }
  PagedKv<T> kv(const KvCache& cache, std::span<const View<const int32_t, 2>> block_tables, int64_t layer) const;
  // slots: one per sequence of the batch, see slots_of.
  ConvState<T> conv(const KvCache& cache, std::span<const int32_t> slots, int64_t layer, ConvStream stream) const;
  std::vector<int32_t> slots_of(std::span<const View<const int32_t, 2>> block_tables) const;

 private:
  struct Place {
    int64_t group = 0;      // of K and V
    int64_t kv_offset = 0;  // elements per block that lie before this layer's K
    int64_t kv_heads = 0, head_dim = 0;
    int64_t conv_offset[4] = {};  // elements per slot that lie before each stream
    int64_t channels[4] = {};
  };
  std::vector<CacheSpec> specs_;
  std::vector<Place> places_;
  int64_t conv_group_ = 0;
};

}  // namespace nib
