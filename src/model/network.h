// A loaded text network: token ids of a mixed batch in, logits out. Two generations, two activation types, one
// interface.
//   Result<std::unique_ptr<Network>> net = load_network(folder, options);
//   (*net)->forward(cx, input, cache, logits, nullptr);
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>

#include "compute/ops/batch.h"
#include "model/cache.h"
#include "model/config.h"
#include "model/drafter_weights.h"
#include "model/taps.h"

namespace nib {

// One step's batch: prefill chunks and decode rows of many sequences, in any mix. Plain data; the engine fills it.
struct ForwardInput {
  View<const int32_t, 1> tokens;            // [rows]
  std::span<const SequenceRows> sequences;  // cover the rows in order
  // Per cache group, in the order of cache_specs(): kFull and kWindow [sequences, max_blocks], kConv [sequences, 1]
  // (the slot).
  std::span<const View<const int32_t, 2>> block_tables;
  std::span<const int32_t> logit_rows;  // rows whose logits are wanted, ascending
  View<float, 2> taps = {};             // [rows, taps x hidden], written if given: LoadOptions::taps side by side
};

// The memory of all groups; made at start from the pool sizes, never grows. Owned by the Runner.
class KvCache {
 public:
  KvCache(std::span<const CacheSpec> specs, std::span<const int64_t> num_blocks);
  // Start of the group's storage. Layout inside is the network's own: blocks are the unit the engine knows.
  std::byte* data(int64_t group) const { return buffers_[group].data(); }
  int64_t num_blocks(int64_t group) const { return num_blocks_[group]; }

 private:
  std::vector<Buffer> buffers_;
  std::vector<int64_t> num_blocks_;
};

// Receives intermediates for debugging under the names of the oracles without their _T ("hidden_3", "P_2_attn",
// "route_ids_4"). FP32 or I64 rows; called once per forward and name.
using Trace = std::function<void(std::string_view name, View<const float, 2> rows)>;

class Network {
 public:
  virtual ~Network() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const std::vector<CacheSpec>& cache_specs() const = 0;
  // logits: [logit_rows, unpadded_vocab_size] F32, after muP divisor and soft cap. trace may be null.
  // Law: a row depends on its own sequence alone, bit for bit, whatever the batch and the chunks.
  virtual void forward(Context& cx, const ForwardInput& in, const KvCache& cache, View<float, 2> logits,
                       const Trace* trace) const = 0;
  // The tables that a drafter borrows; they live as long as the network.
  virtual SharedTables shared_tables() const = 0;
  // Bytes of workspace that a step of so many rows and logit rows needs at most.
  virtual int64_t workspace_bytes(int64_t rows, int64_t logit_rows, int64_t num_threads) const = 0;
};

struct LoadOptions {
  bool f32 = false;               // --dtype f32: activations and caches in FP32
  int64_t kv_block_size = 16;     // positions a block
  int64_t max_rejected_rows = 0;  // rows a step may take back (speculation): lengthens the convolution rings
  std::vector<Tap> taps = {};     // what ForwardInput::taps asks for, resolved for this network
};

// Checks every tensor (missing, unknown, misshapen: named with what was expected), maps the weights, builds the
// network.
Result<std::unique_ptr<Network>> load_network(const std::filesystem::path& folder, const LoadOptions& options);

}  // namespace nib
