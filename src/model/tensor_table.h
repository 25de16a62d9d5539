// Every tensor that a text network reads, with its names, shapes and place: the one table behind loading, inspecting
// and planning.
//   for (const TensorSpec& s : tensor_table(config, &checkpoint)) ...
//   Result<Binding> b = bind_tensors(config, checkpoint);
//   b->at(Role::kQ, layer).info;
// Names: Inkling 2 section 4.1; first generation, its specification section 4.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/status.h"
#include "compute/ops/gemm.h"
#include "model/checkpoint.h"
#include "model/config.h"

namespace nib {

// What a tensor is for; with layer and part it names one tensor of the network.
enum class Role : uint8_t {
  kEmbed,
  kUnembed,
  kEmbedNorm,
  kNorm,
  kOutputQuery,
  kAttnNorm,  // parts 0..2 (Q, K, V) in full layers of Inkling 2; kAttnNorms is the same stacked [3, H]
  kAttnNorms,
  kMlpNorm,
  kAttnQuery,
  kMlpQuery,
  kQ,
  kK,
  kV,
  kR,
  kGate,
  kSink,
  kQkvr,
  kO,
  kTable,
  kQNorm,
  kKNorm,
  kQScale,
  kKScale,
  kRScale,
  kKTaps,
  kVTaps,
  kKTapProj,
  kVTapProj,
  kAttnTaps,
  kMlpTaps,
  kRouter,
  kRouterBias,
  kRouterScale,
  kW13,
  kW2,
  kSharedW13,
  kSharedGate,
  kSharedUp,
  kSharedW2,  // gate and up apart in the spelling of transformers
  kDenseW13,
  kDenseGate,
  kDenseUp,
  kDenseW2,
  kDenseScale,
};

// How memory plans and listings group tensors.
enum class TensorKind : uint8_t { kExpert, kAttention, kDense, kHead, kEmbed, kRouter, kConv, kNorm, kQuery, kOther };
inline constexpr int kNumTensorKinds = 10;
std::string_view name(TensorKind kind);

// Which part of the tensor one of several tensor-parallel ranks holds.
enum class Shard : uint8_t {
  kReplicated,
  kRows,     // of the last two axes: a slab of rows (heads, or gate/up pairs)
  kColumns,  // a slab of columns; the products are partial sums
};

struct TensorSpec {
  Role role;
  int64_t layer = -1;  // -1: not of a layer
  int part = 0;
  TensorKind kind = TensorKind::kOther;
  Shard shard = Shard::kReplicated;
  std::vector<std::string> names;            // the first name, then its aliases
  std::vector<std::vector<int64_t>> shapes;  // the first is the usual one; any of them is accepted
  bool optional = false;
  bool usual = true;      // optional tensors: counted by a plan made without a checkpoint
  bool packable = false;  // may be NVFP4 or MXFP8 with companions
  bool halves = false;    // rows: all gates, then all ups (transformers); else gate and up alternate
  bool f32 = false;       // stored in F32 as a rule, else BF16; both are accepted, F16 too
};

// The tensors of the network. A checkpoint decides between equal spellings (split or fused projections, stacked norms,
// the names of transformers); without one the first spelling is given.
std::vector<TensorSpec> tensor_table(const ModelConfig& config, const Checkpoint* checkpoint);

// A tensor of the table, found in a checkpoint.
struct BoundTensor {
  TensorSpec spec;
  const TensorInfo* info = nullptr;           // null: optional and absent
  WeightFormat format = WeightFormat::kBF16;  // of packable tensors
  // Companions of packed tensors. outer = multiplier, or 1 / reciprocal, or amax / denominator.
  const TensorInfo* scales = nullptr;
  const TensorInfo *multiplier = nullptr, *reciprocal = nullptr, *amax = nullptr, *denominator = nullptr;
  std::vector<const TensorInfo*> unread;  // companions of the activations' scales, known but not needed

  bool present() const { return info != nullptr; }
  int64_t bytes() const;  // with companions
};

// The network's tensors in a checkpoint. Pointers go into the checkpoint, which must stay where it is.
struct Binding {
  std::map<std::tuple<int64_t, Role, int>, BoundTensor> tensors;  // by layer, role, part
  std::vector<const TensorInfo*> unused;  // vision, audio, drafters: not read by the text network

  const BoundTensor& at(Role role, int64_t layer = -1, int part = 0) const;  // absent ones too, empty
};

// Finds every tensor of the table and checks shape, dtype and companions. Errors name the tensor, the file, and what
// was expected: missing, misshapen, wrong dtype, companion missing or without base, a text tensor that nothing reads.
Result<Binding> bind_tensors(const ModelConfig& config, const Checkpoint& checkpoint);

}  // namespace nib
