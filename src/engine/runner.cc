#include "engine/runner.h"

#include <algorithm>
#include <cstring>

#include "engine/spec_decode/draft_sampler.h"

namespace nib {

namespace {

void copy_block(std::byte* data, int64_t num_blocks, const CacheSpec& spec, const BlockCopy& copy) {
  for (int64_t bytes : spec.part_bytes) {
    std::memcpy(data + copy.to * bytes, data + copy.from * bytes, bytes);
    data += num_blocks * bytes;
  }
}

int64_t table_width(const CacheSpec& spec, int64_t max_model_len) {
  return spec.kind == CacheSpec::Kind::kConv ? 1 : (max_model_len + spec.block_size - 1) / spec.block_size;
}

int64_t logits_bytes(const Network& network, int64_t rows) {
  return rows * network.config().unpadded_vocab_size * static_cast<int64_t>(sizeof(float));
}

int64_t taps_bytes(const Drafter& drafter, const RunnerLimits& limits) {
  return limits.max_rows * drafter.tap_width() * static_cast<int64_t>(sizeof(float));
}

int64_t draft_logits_bytes(const Drafter& drafter, const RunnerLimits& limits) {
  return limits.max_sequences * limits.max_drafts * drafter.vocab_size() * static_cast<int64_t>(sizeof(float));
}

int64_t workspace_bytes(const Models& models, const RunnerLimits& limits) {
  const int64_t target = models.target->workspace_bytes(limits.max_rows, limits.max_logit_rows, limits.num_threads);
  if (!models.drafter) return target;
  return std::max(target, models.drafter->workspace_bytes(limits.max_rows, limits.max_sequences, limits.num_threads));
}

}  // namespace

int64_t Runner::step_bytes(const Models& models, const RunnerLimits& limits) {
  const Network& target = *models.target;
  int64_t bytes = workspace_bytes(models, limits) + logits_bytes(target, limits.max_logit_rows);
  for (const CacheSpec& spec : models.cache_specs())
    bytes += limits.max_sequences * table_width(spec, limits.max_model_len) * static_cast<int64_t>(sizeof(int32_t));
  if (models.drafter) bytes += taps_bytes(*models.drafter, limits) + draft_logits_bytes(*models.drafter, limits);
  return bytes;
}

Runner::Runner(Models models, const RunnerLimits& limits, std::span<const int64_t> num_blocks)
    : limits_(limits),
      models_(std::move(models)),
      specs_(models_.cache_specs()),
      cache_(specs_, num_blocks),
      pool_(limits.num_threads),
      workspace_(workspace_bytes(models_, limits)),
      context_{limits.isa, pool_, workspace_},
      logits_(logits_bytes(network(), limits.max_logit_rows)),
      sampler_(network().config().unpadded_vocab_size, pool_) {
  for (const CacheSpec& spec : specs_) {
    int64_t bytes = 0;
    for (int64_t part : spec.part_bytes) bytes += part;
    NIB_CHECK_EQ(bytes, spec.bytes_per_block);
    tables_.emplace_back(limits.max_sequences, table_width(spec, limits.max_model_len));
  }
  if (!models_.drafter) return;
  const int64_t drafts = limits.max_sequences * limits.max_drafts;
  taps_ = Buffer(taps_bytes(*models_.drafter, limits));
  draft_table_.emplace(limits.max_sequences, table_width(specs_.back(), limits.max_model_len));
  draft_tokens_ = Buffer(drafts * static_cast<int64_t>(sizeof(int32_t)));
  draft_logits_ = Buffer(draft_logits_bytes(*models_.drafter, limits));
  draft_confidence_ = Buffer(drafts * static_cast<int64_t>(sizeof(float)));
}

View<float, 2> Runner::logits(int64_t rows) const {
  const View<float, 2> view(reinterpret_cast<float*>(logits_.data()), {rows, network().config().unpadded_vocab_size});
  NIB_CHECK(view.size() * static_cast<int64_t>(sizeof(float)) <= logits_.size(), "{} rows of logits", rows);
  return view;
}

void Runner::prepare(const StepPlan& plan) {
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const SequenceCache& cache = plan.sequences[i]->cache;
    for (size_t g = 0; g < tables_.size(); ++g) tables_[g].set(static_cast<int64_t>(i), cache.lease, cache.tables[g]);
  }
  sampler_.prepare(plan.sample_rows);
}

const StepOutput& Runner::run(const StepPlan& plan) {
  prepare(plan);
  forward(plan);
  sample(plan);
  commit_context(plan);
  copy_blocks(plan);
  return output_;
}

View<float, 2> Runner::taps(int64_t rows) const {
  if (!models_.drafter) return {};
  return {reinterpret_cast<float*>(taps_.data()), {rows, models_.drafter->tap_width()}};
}

DraftStorage Runner::draft_storage() const {
  const auto group = static_cast<int64_t>(specs_.size()) - 1;
  return {cache_.data(group), cache_.num_blocks(group)};
}

void Runner::forward(const StepPlan& plan) {
  std::vector<View<const int32_t, 2>> tables;
  for (size_t g = 0; g < network().cache_specs().size(); ++g)
    tables.push_back(tables_[g].view(static_cast<int64_t>(plan.sequences.size())));
  const auto rows = static_cast<int64_t>(plan.tokens.size());
  const View<const int32_t, 1> tokens(plan.tokens.data(), {rows});
  const ForwardInput in{tokens, plan.rows, tables, plan.logit_rows, plan.feeds_drafter ? taps(rows) : View<float, 2>()};
  network().forward(context_, in, cache_, logits(static_cast<int64_t>(plan.logit_rows.size())), nullptr);
}

const StepOutput& Runner::sample(const StepPlan& plan) {
  const View<const float, 2> rows = logits(static_cast<int64_t>(plan.logit_rows.size()));
  sampler_.sample(rows, output_.samples);
  sampler_.prompt_logprobs(rows, plan.prompt_rows, output_.prompt_logprobs);
  return output_;
}

// Rows behind the first draft that was not accepted never reach the draft cache: the others move up.
void Runner::commit_context(const StepPlan& plan) {
  if (!models_.drafter || !plan.feeds_drafter) return;
  accepted_rows_ = plan.rows;
  for (const Draw& draw : plan.draws)
    accepted_rows_[draw.place].count -= draw.num_drafts() - num_accepted(plan, draw, output_);
  const View<float, 2> all = taps(static_cast<int64_t>(plan.tokens.size()));
  int64_t kept = 0;
  for (SequenceRows& rows : accepted_rows_) {
    std::copy_n(all.row(rows.begin), rows.count * all.dim(1), all.row(kept));
    rows.begin = std::exchange(kept, kept + rows.count);
  }
  models_.drafter->commit(context_, taps(kept), accepted_rows_, draft_storage(),
                          tables_.back().view(static_cast<int64_t>(plan.sequences.size())));
}

void Runner::copy_blocks(const StepPlan& plan) {
  for (const BlockCopy& copy : plan.copies)
    copy_block(cache_.data(copy.group), cache_.num_blocks(copy.group), specs_[copy.group], copy);
}

const Drafts& Runner::draft(const DraftPlan& plan) {
  const auto blocks = static_cast<int64_t>(plan.blocks.size());
  for (int64_t b = 0; b < blocks; ++b) {
    const SequenceCache& cache = plan.sequences[b]->cache;
    draft_table_->set(b, cache.lease, cache.tables.back());
  }
  const int64_t K = limits_.max_drafts, vocab = models_.drafter->vocab_size();
  const View<int32_t, 2> tokens(reinterpret_cast<int32_t*>(draft_tokens_.data()), {blocks, K});
  const View<float, 3> logits(reinterpret_cast<float*>(draft_logits_.data()), {blocks, K, vocab});
  View<float, 2> confidence;
  if (models_.drafter->has_confidence()) confidence = {reinterpret_cast<float*>(draft_confidence_.data()), {blocks, K}};
  models_.drafter->draft(context_, plan.blocks, draft_storage(), draft_table_->view(blocks),
                         {tokens, logits, confidence, View<float, 3>()},
                         [&](int64_t b, int64_t k, std::span<const float> x) { return choose_draft(plan, b, k, x); });
  return drafts_ = {tokens, logits, confidence};
}

// Temperature only: what the target cuts away costs acceptance, never exactness.
int32_t Runner::choose_draft(const DraftPlan& plan, int64_t b, int64_t k, std::span<const float> logits) const {
  const SamplingState& state = plan.sequences[b]->sampling;
  const int64_t anchor = plan.blocks[b].position, position = anchor + 1 + k;
  const double temperature = limits_.probabilistic_drafts ? state.params().temperature : 0;
  return sample_draft(logits, temperature,
                      plan.coupled[b] ? Noise(state.seed(), position) : Noise::draft(state.seed(), anchor, position));
}

}  // namespace nib
