#include "server/sse.h"

#include <utility>

namespace nib {

std::string sse_event(std::string_view data) {
  std::string out;
  out.reserve(data.size() + 8);
  out += "data: ";
  out += data;
  out += "\n\n";
  return out;
}

bool SseReader::push(std::string_view bytes, const std::function<bool(std::string_view)>& visit) {
  size_t end;
  while ((end = bytes.find('\n')) != std::string_view::npos) {
    line_ += bytes.substr(0, end);
    bytes.remove_prefix(end + 1);
    if (line_.ends_with('\r')) line_.pop_back();
    const std::string line = std::move(line_);
    line_.clear();
    if (!take_line(line, visit)) return false;
  }
  line_ += bytes;
  return true;
}

// An empty line ends an event; several data lines are joined by line breaks, as the standard says.
bool SseReader::take_line(std::string_view line, const std::function<bool(std::string_view)>& visit) {
  if (line.empty()) {
    const std::string data = std::move(data_);
    data_.clear();
    const bool complete = std::exchange(has_data_, false);
    return !complete || visit(data);
  }
  if (!line.starts_with("data:")) return true;
  line.remove_prefix(5);
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_ += line;
  has_data_ = true;
  return true;
}

}  // namespace nib
