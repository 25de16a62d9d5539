// A network that says the alphabet: after a letter the next one, after z the end of the turn, so that answers are
// known.
//   ScriptNetwork network;                     // vocabulary of small_tokenizer()
//   after "abc" it says d, e, ... z, <|end_message|>, <|content_model_end_sampling|>, and then a again
#pragma once

#include <chrono>
#include <thread>

#include "model/network.h"
#include "text/small_tokenizer.h"

namespace nib::testing {

class ScriptNetwork : public Network {
 public:
  static constexpr int64_t kVocab = 291;
  static constexpr TokenId byte_id(unsigned char byte) { return 275 - byte; }

  explicit ScriptNetwork(std::chrono::microseconds step_time = {}) : step_time_(step_time) {
    config_.vocab_size = config_.unpadded_vocab_size = kVocab;
    config_.max_position = 100'000;
    config_.eos_token_ids = {S};
    specs_ = {
        {.kind = CacheSpec::Kind::kFull, .layers = {0}, .block_size = 16, .bytes_per_block = 64, .part_bytes = {64}}};
  }

  const ModelConfig& config() const override { return config_; }
  const std::vector<CacheSpec>& cache_specs() const override { return specs_; }
  int64_t workspace_bytes(int64_t, int64_t, int64_t) const override { return 0; }
  SharedTables shared_tables() const override { return {}; }

  void forward(Context&, const ForwardInput& in, const KvCache&, View<float, 2> logits, const Trace*) const override {
    if (step_time_.count() > 0) std::this_thread::sleep_for(step_time_);
    for (size_t i = 0; i < in.logit_rows.size(); ++i) {
      float* row = logits.data() + static_cast<int64_t>(i) * logits.stride(0);
      for (int64_t id = 0; id < kVocab; ++id) row[id] = -0.001f * static_cast<float>(id);
      row[next_after(in.tokens.data()[in.logit_rows[i]])] = 8;
    }
  }

  static TokenId next_after(TokenId last) {
    switch (last) {
      case M:
        return X;
      case E:
        return S;
      case byte_id('z'):
        return E;
      default:
        break;
    }
    const bool letter = last < byte_id('a') + 1 && last > byte_id('z');
    return letter ? last - 1 : byte_id('a');
  }

 private:
  std::chrono::microseconds step_time_;
  ModelConfig config_;
  std::vector<CacheSpec> specs_;
};

}  // namespace nib::testing
