// An answer being made by the engine: submits its requests, carries their events to the Answer, cancels what nobody
// needs any more. Lives on its connection's thread; the engine only ever calls the wake-up.
//   return std::make_unique<GenerationReply>(service, std::move(requests), std::move(answer), arrival);
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "server/answer.h"
#include "server/http_message.h"
#include "server/metrics.h"
#include "server/service.h"

namespace nib {

class GenerationReply : public ReplySource {
 public:
  using Clock = std::chrono::steady_clock;
  // One request per prompt of the answer.
  GenerationReply(const Service& service, std::vector<Request> requests, std::unique_ptr<Answer> answer,
                  Clock::time_point arrival);
  ~GenerationReply() override;  // cancels what still runs: the client is gone

  std::optional<HttpReply> start(std::function<void()> wake) override;
  bool streams() const override { return answer_->streams(); }
  Progress poll() override;
  bool broken() const override;

 private:
  struct Running {
    uint64_t id = 0;
    std::shared_ptr<EventChannel> channel;
    std::vector<bool> open;      // the sequences the engine still works on
    int64_t num_unfinished = 0;  // of them
    int64_t last_token_ns = 0;   // of sequence 0
    FinishedRequest facts;
  };
  size_t channel_capacity(const SamplingParams& s) const;
  void take(size_t prompt, TokenEvent& event, std::string& out);
  void observe(Running& r, const TokenEvent& event);
  void close(Running& r, int32_t sequence, FinishReason finish);
  void observe_end(Running& r, FinishReason finish);
  void cancel_all();
  Progress fail(const std::string& message);

  const Service& service_;
  std::vector<Request> requests_;
  std::unique_ptr<Answer> answer_;
  std::vector<Running> running_;
  Clock::time_point arrival_;
  std::string error_;
  bool ended_ = false;
};

}  // namespace nib
