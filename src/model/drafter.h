// A DSpark drafter: proposes the next tokens of a sequence from hidden states of its target
// (https://arxiv.org/abs/2607.05147).
//   NIB_ASSIGN(auto drafter, load_drafter(folder, {.f32 = true}, nullptr));
//   DraftContext context = drafter->make_context(max_positions);
//   drafter->commit(cx, context, taps, start);                  // rows the target has accepted
//   Draft d = drafter->draft(cx, context, anchor, position, 7);  // d.tokens[k] belongs at position + 1 + k
// One block: slot 0 holds the anchor (the last token emitted, not yet through the target), all others the mask.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "compute/tensor/buffer.h"
#include "compute/tensor/context.h"
#include "compute/tensor/view.h"
#include "model/drafter_weights.h"

namespace nib {

// K and V of one sequence's accepted tokens in every draft layer; row i is position i, [begin, end) is valid.
struct DraftContext {
  Buffer keys, values;  // [layers, capacity, kv_heads * head_dim] in the drafter's activation type
  int64_t capacity = 0;
  int64_t begin = 0, end = 0;
};

struct Draft {
  std::vector<int32_t> tokens;           // [K]
  std::vector<float> logits;             // [K, vocabulary]: what each token was chosen from, before temperature
  std::vector<float> confidence_logits;  // [K]: log-odds that a token is accepted if those before it are; or empty
  std::vector<float> hidden;             // [K, hidden]: rows of the block after the final norm
};

// Chooses draft k (from 0) by its logits; must give an id of theirs.
using DraftSampler = std::function<int32_t(int64_t k, std::span<const float> logits)>;
int32_t greedy_draft(int64_t k, std::span<const float> logits);  // the best id, the first of equals

// Immutable after loading; a call uses the Context's workspace and threads, like Network::forward.
class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual const DrafterConfig& config() const = 0;
  virtual int64_t tap_width() const = 0;   // taps x width of the target
  virtual int64_t vocab_size() const = 0;  // of logits
  // Workspace of the larger of a commit of so many rows and a draft.
  virtual int64_t workspace_bytes(int64_t rows, int64_t num_threads) const = 0;
  virtual DraftContext make_context(int64_t capacity) const = 0;

  // Writes K and V of positions start, start + 1, ... from the target's tapped hidden states [rows, tap_width()].
  // Positions from start on are replaced; a start outside [begin, end] begins the context anew there.
  virtual void commit(Context& cx, DraftContext& context, View<const float, 2> taps, int64_t start) const = 0;
  // REQUIRES 1 <= num_tokens <= config().max_draft_tokens() and position >= context.end: only positions before the
  // anchor are seen. The whole trained block runs, the first num_tokens are kept.
  virtual Draft draft(Context& cx, const DraftContext& context, int32_t anchor, int64_t position, int64_t num_tokens,
                      const DraftSampler& sampler = greedy_draft) const = 0;
};

struct DrafterOptions {
  bool f32 = false;  // activations and draft K/V in FP32, else BF16
  // Rounds the rotary frequencies to BF16 once. The authors' own code does so: it casts the model as a whole, buffers
  // too, and their outputs (tests/data/oracle/dspark-tiny-*) are met only this way. False: the plain FP32 formula.
  bool bf16_rope_frequencies = true;
};

// A folder with the drafter's config.json and its tensors: mtp.safetensors if there is one, else model.safetensors or
// its shards. shared: null for a drafter that brings its embedding and output head.
Result<std::unique_ptr<Drafter>> load_drafter(const std::filesystem::path& folder, const DrafterOptions& options,
                                              const SharedTables* shared);
Result<std::unique_ptr<Drafter>> make_drafter(const DrafterConfig& config, Checkpoint checkpoint,
                                              const DrafterOptions& options, const SharedTables* shared);

}  // namespace nib
