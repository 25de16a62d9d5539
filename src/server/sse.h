// Server-sent events, both directions: one `data:` line an event, as the OpenAI API streams them.
//   out += sse_event(chunk.dump());
//   SseReader reader;
//   reader.push(bytes, [&](std::string_view data) { use(data); return true; });
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace nib {

inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";

// REQUIRES: data holds no line break (JSON dumps do not).
std::string sse_event(std::string_view data);

// Finds the data of each event in bytes that arrive in any pieces. Comments and other fields are skipped.
class SseReader {
 public:
  // False as soon as visit returns false: the rest is not looked at.
  bool push(std::string_view bytes, const std::function<bool(std::string_view data)>& visit);

 private:
  bool take_line(std::string_view line, const std::function<bool(std::string_view)>& visit);
  std::string line_, data_;
  bool has_data_ = false;
};

}  // namespace nib
