#include <mutex>

#include "engine/request.h"

namespace nib {

struct EventChannel::State {
  std::mutex mutex;
  std::vector<TokenEvent> events;
  bool overflowed = false;
};

std::shared_ptr<EventChannel::State> EventChannel::make_state() { return std::make_shared<State>(); }

bool EventChannel::push(TokenEvent event) {
  const bool last = event.finish != FinishReason::kNone;
  bool taken = true;
  {
    std::lock_guard lock(state_->mutex);
    if (!last && (state_->overflowed || state_->events.size() >= capacity_)) {
      state_->overflowed = true;
      taken = false;
    } else {
      state_->events.push_back(std::move(event));
    }
  }
  if (wake_) wake_();
  return taken;
}

std::vector<TokenEvent> EventChannel::drain() {
  std::vector<TokenEvent> out;
  std::lock_guard lock(state_->mutex);
  out.swap(state_->events);
  return out;
}

bool EventChannel::overflowed() const {
  std::lock_guard lock(state_->mutex);
  return state_->overflowed;
}

}  // namespace nib
