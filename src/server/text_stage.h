// From sampled ids to what the client sees, one per sequence: the chat parser, or plain text for raw completions.
//   for (const Delta& d : stage->push(ids)) show(d);
//   if (stage->stopped()) ...
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/detokenizer.h"
#include "text/output_parser.h"
#include "text/stop_matcher.h"

namespace nib {

class TextStage {
 public:
  virtual ~TextStage() = default;
  virtual std::vector<Delta> push(std::span<const TokenId> ids) = 0;
  virtual std::vector<Delta> finish(FinishCause cause) = 0;
  virtual std::optional<std::string> stopped() const = 0;
  virtual int num_tokens_settled() const = 0;  // ids that belong to the answer whatever follows
  virtual int num_reasoning_tokens() const { return 0; }
  virtual bool any_tool_call() const { return false; }
  virtual bool in_reasoning() const { return false; }  // after the last id
};

class ChatStage : public TextStage {
 public:
  ChatStage(const Tokenizer& tokenizer, const ChatFormat& format, OutputParserOptions options,
            std::span<const TokenId> prompt)
      : parser_(tokenizer, format, std::move(options), prompt) {}
  std::vector<Delta> push(std::span<const TokenId> ids) override { return parser_.push(ids); }
  std::vector<Delta> finish(FinishCause cause) override { return parser_.finish(cause); }
  std::optional<std::string> stopped() const override { return parser_.stopped(); }
  int num_tokens_settled() const override { return parser_.num_tokens_settled(); }
  int num_reasoning_tokens() const override { return parser_.num_reasoning_tokens(); }
  bool any_tool_call() const override { return parser_.any_tool_call(); }
  bool in_reasoning() const override { return parser_.in_reasoning(); }

 private:
  OutputParser parser_;
};

class PlainStage : public TextStage {
 public:
  PlainStage(const Tokenizer& tokenizer, bool skip_special, std::vector<std::string> stop, bool include_stop,
             int min_tokens)
      : detokenizer_(tokenizer, skip_special), stops_(std::move(stop), include_stop, min_tokens) {}
  std::vector<Delta> push(std::span<const TokenId> ids) override;
  std::vector<Delta> finish(FinishCause cause) override;
  std::optional<std::string> stopped() const override;
  int num_tokens_settled() const override { return num_tokens_; }

 private:
  Detokenizer detokenizer_;
  StopMatcher stops_;
  int num_tokens_ = 0;
};

}  // namespace nib
