// A DSpark drafter: proposes the next tokens of many sequences from hidden states of their target
// (https://arxiv.org/abs/2607.05147).
//   NIB_ASSIGN(auto drafter, load_drafter(folder, {.f32 = true}, nullptr));
//   drafter->commit(cx, taps, sequences, storage, block_tables);           // rows the target has accepted
//   drafter->draft(cx, blocks, storage, block_tables, output, sampler);    // tokens(b, k) belongs at position + 1 + k
// One block: slot 0 holds the anchor (the last token emitted, not yet through the target), all others the mask.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include "compute/ops/batch.h"
#include "compute/tensor/context.h"
#include "compute/tensor/view.h"
#include "model/cache.h"
#include "model/drafter_weights.h"

namespace nib {

// The memory of the draft group: so many blocks of cache_spec(), owned by the engine.
struct DraftStorage {
  std::byte* data = nullptr;
  int64_t num_blocks = 0;
};

// One sequence's block in a batch.
struct DraftBlock {
  int32_t anchor = 0;
  int64_t position = 0;                        // of the anchor
  int64_t context_begin = 0, context_end = 0;  // the committed positions that count; context_end <= position
  int64_t num_tokens = 0;                      // 1 .. config().max_draft_tokens()
};

// Chooses draft k (from 0) of a block by its logits [vocab]: an id of theirs, or -1, which ends the block's drafts (a
// NaN among the logits). Called on the caller's thread, for every k one block after the other.
using DraftSampler = std::function<int32_t(int64_t block, int64_t k, std::span<const float> logits)>;
// The best id, the first of equals; -1 if a logit is NaN.
int32_t greedy_draft(int64_t block, int64_t k, std::span<const float> logits);

// Where drafts go: memory of the caller. max_tokens >= num_tokens of every block; what lies behind a block's last draft
// is -1 in tokens and left as it was elsewhere.
struct DraftOutput {
  View<int32_t, 2> tokens;  // [blocks, max_tokens]
  View<float, 3> logits;    // [blocks, max_tokens, vocab], dense: what each token was chosen from, before temperature
  View<float, 2>
      confidence;         // [blocks, max_tokens]: log-odds that a draft is accepted if those before it are; or empty
  View<float, 3> hidden;  // [blocks, max_tokens, hidden]: rows of the block after the final norm; or empty
};

// Immutable after loading; a call uses the Context's workspace and threads, like Network::forward.
// Law: what a sequence is given depends on its own block and context alone, bit for bit, whatever the batch, the paging
// and the cuts between commits.
class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual const DrafterConfig& config() const = 0;
  virtual int64_t tap_width() const = 0;   // taps x width of the target
  virtual int64_t vocab_size() const = 0;  // of logits
  virtual bool has_confidence() const = 0;
  // K and V of the draft layers at accepted positions: for each layer K, then V [blocks, block_size, kv_heads,
  // head_dim].
  virtual const CacheSpec& cache_spec() const = 0;
  // Workspace of the larger of a commit of so many rows and a draft of so many blocks.
  virtual int64_t workspace_bytes(int64_t commit_rows, int64_t blocks, int64_t num_threads) const = 0;

  // Writes K and V of the rows' positions from the target's tapped hidden states [rows, tap_width()]. The sequences
  // cover the rows in order; block_tables [sequences, max_blocks] of the draft group.
  virtual void commit(Context& cx, View<const float, 2> taps, std::span<const SequenceRows> sequences,
                      const DraftStorage& storage, View<const int32_t, 2> block_tables) const = 0;
  // The whole trained block of every sequence runs, the first num_tokens are kept. block_tables [blocks, max_blocks].
  // The block's own K and V stay in the workspace. confidence and hidden are written if they are given; confidence only
  // with has_confidence().
  virtual void draft(Context& cx, std::span<const DraftBlock> blocks, const DraftStorage& storage,
                     View<const int32_t, 2> block_tables, const DraftOutput& output,
                     const DraftSampler& sampler) const = 0;
};

struct DrafterOptions {
  bool f32 = false;  // activations and draft K/V in FP32, else BF16
  // Rounds the rotary frequencies to BF16 once. The authors' own code does so: it casts the model as a whole, buffers
  // too, and their outputs (tests/data/oracle/dspark-tiny-*) are met only this way. False: the plain FP32 formula.
  bool bf16_rope_frequencies = true;
  int64_t kv_block_size = 16;  // positions a block of the draft group
};

// A drafter's own folder, or that of its target: DrafterConfig::load and open_drafter_checkpoint say what is looked
// for. shared: null for a drafter that brings its embedding and output head.
Result<std::unique_ptr<Drafter>> load_drafter(const std::filesystem::path& folder, const DrafterOptions& options,
                                              const SharedTables* shared);
Result<std::unique_ptr<Drafter>> make_drafter(const DrafterConfig& config, Checkpoint checkpoint,
                                              const DrafterOptions& options, const SharedTables* shared);

}  // namespace nib
