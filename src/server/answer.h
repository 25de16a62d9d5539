// Turns the token events of one API call into its reply: chunks of a stream, or the one answer they fold into. Both
// come from the same deltas.
//   ChatAnswer answer(service, plan);
//   answer.take(request_index, event, frames);
//   HttpReply reply = answer.whole();
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/http_message.h"
#include "server/logprobs_json.h"
#include "server/options.h"
#include "server/text_stage.h"

namespace nib {

// One prompt of the call; chat has one, completions may have many.
struct AnswerPrompt {
  std::vector<int32_t> ids;
  std::string text;
};

struct AnswerPlan {
  GenerateOptions options;
  std::vector<AnswerPrompt> prompts;
  bool with_logprobs = false;          // of the output
  bool visible_logprobs_only = false;  // neither of reasoning nor of control tokens: what the answer hides
  bool prompt_only = false;            // echo of the prompt without a token behind it
  std::string echoed;                  // chat: the last message, said again in front of the answer
};

class Answer {
 public:
  virtual ~Answer() = default;

  // Takes an event of one prompt's request; the frames of a stream are appended to out.
  void take(size_t prompt, TokenEvent& event, std::string& out);
  bool sequence_done(size_t prompt, int32_t sequence) const;  // needs no other token
  bool done() const;
  void end_stream(std::string& out);  // usage, if asked, and [DONE]
  HttpReply whole();

  bool streams() const { return plan_.options.stream; }
  int64_t num_prompt_tokens() const;
  int64_t num_completion_tokens() const;
  const AnswerPlan& plan() const { return plan_; }

 protected:
  struct PendingToken {
    int32_t id;
    std::optional<Logprobs> logprobs;  // if they are to be shown
  };
  struct Sequence {
    int index = 0;  // of the choice
    size_t prompt = 0;
    std::unique_ptr<TextStage> stage;
    std::deque<PendingToken> pending;  // behind a stop string that may still turn up: neither counted nor sent
    std::vector<Delta> deltas;         // not yet sent
    std::vector<Logprobs> logprobs;    // of tokens not yet sent
    std::vector<int32_t> ids;          // not yet sent
    std::optional<CompletionLogprobs> offsets;
    int64_t num_tokens = 0;  // without the pending ones
    int64_t num_unsent = 0;  // with them
    bool begun = false, flushed = false, ended = false;
    std::string finish_reason;
    Json stop_reason;
  };

  Answer(const Service& service, AnswerPlan plan, std::string object, std::string id_prefix);

  virtual std::unique_ptr<TextStage> make_stage(const AnswerPrompt& prompt) = 0;
  // What stands before the first token: the role chunk, an echoed prompt.
  virtual void begin(Sequence& s, std::string& out) = 0;
  // The choice of one chunk, without index and finish fields. delta may be empty.
  virtual Json chunk_choice(Sequence& s, const Delta& delta) = 0;
  virtual Json whole_choice(Sequence& s) = 0;
  virtual void shape_whole(Json& reply) = 0;

  void make_stages();
  void emit(Sequence& s, Json choice, std::string& out);
  Json envelope(std::string_view object) const;
  Json usage() const;
  Json completion_tokens_details() const;
  Json take_ids(Sequence& s);

  const Service& service_;
  AnswerPlan plan_;
  TokenNames names_;
  std::vector<Sequence> sequences_;                                    // [prompt * n + k]
  std::vector<std::vector<std::optional<Logprobs>>> prompt_logprobs_;  // [prompt]

 private:
  void accept(Sequence& s, int32_t id, std::optional<Logprobs> logprobs);
  void settle(Sequence& s);
  void end(Sequence& s, FinishReason finish);
  void flush(Sequence& s, std::string& out);
  Json usage_of(int64_t prompt_tokens, int64_t completion_tokens) const;

  std::string object_, id_;
  int64_t created_s_;
  int64_t num_cached_tokens_ = 0, num_accepted_drafts_ = 0, num_rejected_drafts_ = 0;
  bool first_chunk_ = true;
};

class ChatAnswer : public Answer {
 public:
  ChatAnswer(const Service& service, AnswerPlan plan, OutputParserOptions parser_options);

 private:
  std::unique_ptr<TextStage> make_stage(const AnswerPrompt& prompt) override;
  void begin(Sequence& s, std::string& out) override;
  Json chunk_choice(Sequence& s, const Delta& delta) override;
  Json whole_choice(Sequence& s) override;
  void shape_whole(Json& reply) override;
  Json logprobs_json(Sequence& s);
  void add_reasoning(Json& to, const std::string& text) const;

  OutputParserOptions parser_options_;
};

class CompletionAnswer : public Answer {
 public:
  CompletionAnswer(const Service& service, AnswerPlan plan);

 private:
  std::unique_ptr<TextStage> make_stage(const AnswerPrompt& prompt) override;
  void begin(Sequence& s, std::string& out) override;
  Json chunk_choice(Sequence& s, const Delta& delta) override;
  Json whole_choice(Sequence& s) override;
  void shape_whole(Json& reply) override;
  Json logprobs_json(Sequence& s);
  void add_prompt_logprobs(Sequence& s);
};

}  // namespace nib
