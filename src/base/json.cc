#include "base/json.h"

#include <algorithm>

namespace nib {

namespace {

// Deepest nesting of brackets outside strings.
int nesting_depth(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

// The library's message without its own name. It quotes the input, which may be long and no UTF-8.
std::string readable(std::string message) {
  if (const size_t end = message.find("] "); end != std::string::npos) message.erase(0, end + 2);
  constexpr size_t kMaxBytes = 200;
  if (message.size() > kMaxBytes) message.replace(kMaxBytes, std::string::npos, "...");
  for (char& c : message)
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  return message;
}

// Builds the tree in O(n log n). The library's own builder looks for each key among all earlier ones of its object,
// so that a body of 200,000 keys would take it half a minute.
class TreeBuilder : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(int64_t value) override { return put(value); }
  bool number_unsigned(uint64_t value) override { return put(value); }
  bool number_float(double value, const std::string& digits) override {
    if (digits.find_first_of(".eE") != std::string::npos) return put(value);
    return put(Json::binary({digits.begin(), digits.end()}));
  }
  bool string(std::string& value) override { return put(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }
  bool end_object() override {
    keep_last_of_equal_keys(*open_.back()->get_ptr<Json::object_t*>());
    return close();
  }
  bool key(std::string& key) override {
    key_ = std::move(key);
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& e) override {
    error_ = readable(e.what());
    return false;
  }

  Json take() { return std::move(root_); }
  const std::string& error() const { return error_; }

 private:
  Json* place(Json value) {
    if (open_.empty()) return &(root_ = std::move(value));
    if (open_.back()->is_array()) return &open_.back()->get_ptr<Json::array_t*>()->emplace_back(std::move(value));
    return &open_.back()->get_ptr<Json::object_t*>()->emplace_back(std::move(key_), std::move(value)).second;
  }
  bool put(Json value) { return place(std::move(value)) != nullptr; }
  bool open(Json value) {
    open_.push_back(place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  // A key that comes again keeps its first place and takes its last value.
  static void keep_last_of_equal_keys(Json::object_t& object) {
    std::vector<size_t> order(object.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return object.begin()[a].first < object.begin()[b].first; });
    std::vector<bool> again(object.size());
    size_t first = 0;
    for (size_t i = 1; i < order.size(); ++i) {
      if (object.begin()[order[i]].first != object.begin()[order[first]].first) {
        first = i;
        continue;
      }
      object.begin()[order[first]].second = std::move(object.begin()[order[i]].second);
      again[order[i]] = true;
    }
    if (std::find(again.begin(), again.end(), true) == again.end()) return;
    Json::object_t kept;
    for (size_t i = 0; i < order.size(); ++i)
      if (!again[i]) kept.emplace_back(object.begin()[i].first, std::move(object.begin()[i].second));
    object = std::move(kept);
  }

  Json root_;
  std::vector<Json*> open_;  // arrays and objects around the next value; none of them grows while a later one is open
  std::string key_, error_;
};

}  // namespace

// JSON text has no binary values, so that one of a parsed tree is an integer.
std::string_view big_integer(const Json& value) {
  if (!value.is_binary()) return {};
  const Json::binary_t& digits = value.get_binary();
  return {reinterpret_cast<const char*>(digits.data()), digits.size()};
}

Result<Json> parse_json(std::string_view text, int max_depth) {
  if (const int depth = nesting_depth(text); depth > max_depth)
    return invalid("JSON is nested {} levels deep, at most {} are allowed", depth, max_depth);
  TreeBuilder builder;
  if (!Json::sax_parse(text, &builder)) return invalid("invalid JSON: {}", builder.error());
  return builder.take();
}

}  // namespace nib
