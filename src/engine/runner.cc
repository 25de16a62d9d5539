#include "engine/runner.h"

#include <cstring>

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

}  // namespace

int64_t Runner::step_bytes(const Network& network, const RunnerLimits& limits) {
  int64_t bytes = network.workspace_bytes(limits.max_rows, limits.max_logit_rows, limits.num_threads) +
                  logits_bytes(network, limits.max_logit_rows);
  for (const CacheSpec& spec : network.cache_specs())
    bytes += limits.max_sequences * table_width(spec, limits.max_model_len) * static_cast<int64_t>(sizeof(int32_t));
  return bytes;
}

Runner::Runner(std::unique_ptr<Network> network, const RunnerLimits& limits, std::span<const int64_t> num_blocks)
    : network_(std::move(network)),
      cache_(network_->cache_specs(), num_blocks),
      pool_(limits.num_threads),
      workspace_(network_->workspace_bytes(limits.max_rows, limits.max_logit_rows, limits.num_threads)),
      context_{limits.isa, pool_, workspace_},
      logits_(logits_bytes(*network_, limits.max_logit_rows)),
      sampler_(network_->config().unpadded_vocab_size, pool_) {
  for (const CacheSpec& spec : network_->cache_specs()) {
    int64_t bytes = 0;
    for (int64_t part : spec.part_bytes) bytes += part;
    NIB_CHECK_EQ(bytes, spec.bytes_per_block);
    tables_.emplace_back(limits.max_sequences, table_width(spec, limits.max_model_len));
  }
}

View<float, 2> Runner::logits(int64_t rows) const {
  const View<float, 2> view(reinterpret_cast<float*>(logits_.data()), {rows, network_->config().unpadded_vocab_size});
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
  copy_blocks(plan);
  return output_;
}

void Runner::forward(const StepPlan& plan) {
  std::vector<View<const int32_t, 2>> tables;
  for (const BlockTableRows& rows : tables_) tables.push_back(rows.view(static_cast<int64_t>(plan.sequences.size())));
  const View<const int32_t, 1> tokens(plan.tokens.data(), {static_cast<int64_t>(plan.tokens.size())});
  const ForwardInput in{tokens, plan.rows, tables, plan.logit_rows};
  network_->forward(context_, in, cache_, logits(static_cast<int64_t>(plan.logit_rows.size())), nullptr);
}

const StepOutput& Runner::sample(const StepPlan& plan) {
  const View<const float, 2> rows = logits(static_cast<int64_t>(plan.logit_rows.size()));
  sampler_.sample(rows, output_.samples);
  sampler_.prompt_logprobs(rows, plan.prompt_rows, output_.prompt_logprobs);
  return output_;
}

void Runner::copy_blocks(const StepPlan& plan) {
  for (const BlockCopy& copy : plan.copies) {
    const CacheSpec& spec = network_->cache_specs()[copy.group];
    copy_block(cache_.data(copy.group), cache_.num_blocks(copy.group), spec, copy);
  }
}

}  // namespace nib
