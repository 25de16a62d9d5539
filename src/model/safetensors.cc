#include "model/safetensors.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <unordered_set>

#include "base/file.h"
#include "base/json.h"

namespace nib {

namespace {

// Remembers the first key of the top level that is given twice: a tree keeps only one of them.
struct DuplicateKeys : nlohmann::json_sax<Json> {
  std::unordered_set<std::string> seen;
  std::string duplicate;
  int depth = 0;

  bool start_object(std::size_t) override { return ++depth > 0; }
  bool end_object() override { return --depth >= 0; }
  bool key(string_t& key) override {
    if (depth == 1 && !seen.insert(key).second) duplicate = key;
    return duplicate.empty();
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }
};

// Non-negative integers of a JSON array; false if anything else is in it.
bool read_sizes(const Json& array, std::vector<int64_t>& out) {
  if (!array.is_array()) return false;
  for (const Json& v : array) {
    if (!v.is_number_unsigned() || v.get<uint64_t>() > INT64_MAX) return false;
    out.push_back(v.get<int64_t>());
  }
  return true;
}

// Elements of a shape, or -1 if they do not fit.
int64_t count_elements(std::span<const int64_t> shape) {
  int64_t n = 1;
  for (int64_t d : shape)
    if (__builtin_mul_overflow(n, d, &n)) return -1;
  return n;
}

Result<TensorInfo> parse_entry(const std::string& name, const Json& entry, int64_t data_bytes,
                               const std::string& file) {
  TensorInfo t;
  t.name = name;
  std::vector<int64_t> offsets;
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() || !entry.contains("shape") ||
      !read_sizes(entry["shape"], t.shape) || !entry.contains("data_offsets") ||
      !read_sizes(entry["data_offsets"], offsets) || offsets.size() != 2)
    return invalid("{}: the entry of {} lacks a valid dtype, shape or data_offsets", file, name);
  const Result<DType> dtype = dtype_from_name(entry["dtype"].get_ref<const std::string&>());
  if (!dtype.ok()) return invalid("{}: {} has the {}", file, name, dtype.status().message());
  t.dtype = *dtype;
  t.offset = offsets[0];
  if (offsets[0] > offsets[1] || offsets[1] > data_bytes)
    return invalid("{}: {} takes bytes {} to {} of {}; the file is truncated or its header is wrong", file, name,
                   offsets[0], offsets[1], data_bytes);
  t.bytes = offsets[1] - offsets[0];
  const int64_t count = count_elements(t.shape);
  int64_t expected = -1;
  if (count < 0 || __builtin_mul_overflow(count, size_in_bytes(t.dtype, 1), &expected) || expected != t.bytes)
    return invalid("{}: {} is {} {} but holds {} bytes", file, name, nib::name(t.dtype), shape_text(t.shape), t.bytes);
  return t;
}

Status check_overlap(const std::vector<TensorInfo>& sorted, const std::string& file) {
  int64_t end = 0;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& t : sorted) {
    if (t.bytes == 0) continue;
    if (t.offset < end) return invalid("{}: the bytes of {} and {} overlap", file, previous->name, t.name);
    end = t.offset + t.bytes;
    previous = &t;
  }
  return {};
}

Json header_json(const std::vector<const OutTensor*>& order) {
  Json header = Json::object();
  int64_t at = 0;
  for (const OutTensor* t : order) {
    const int64_t end = at + static_cast<int64_t>(t->bytes.size());
    header[t->name] = {{"dtype", name(t->dtype)}, {"shape", t->shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  return header;
}

}  // namespace

std::string shape_text(std::span<const int64_t> shape) {
  std::string out;
  for (int64_t d : shape) out.append(out.empty() ? "" : ", ").append(std::to_string(d));
  return "[" + out + "]";
}

Result<std::vector<TensorInfo>> parse_safetensors_header(std::string_view header, int64_t data_begin,
                                                         int64_t data_bytes, const std::string& file) {
  const Result<Json> json = parse_json(header, 8);
  if (!json.ok()) return invalid("{}: its header is wrong: {}", file, json.status().message());
  if (!json->is_object()) return invalid("{}: the header is not a JSON object", file);
  DuplicateKeys keys;
  Json::sax_parse(header, &keys);
  if (!keys.duplicate.empty()) return invalid("{}: {} is listed twice in the header", file, keys.duplicate);

  std::vector<TensorInfo> tensors;
  for (const auto& [name, entry] : json->items()) {
    if (name == "__metadata__") continue;
    NIB_ASSIGN(TensorInfo t, parse_entry(name, entry, data_bytes, file));
    tensors.push_back(std::move(t));
  }
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const TensorInfo& a, const TensorInfo& b) { return a.offset < b.offset; });
  NIB_TRY(check_overlap(tensors, file));
  for (TensorInfo& t : tensors) t.offset += data_begin;
  return tensors;
}

Result<std::vector<TensorInfo>> read_safetensors_header(const std::filesystem::path& file) {
  const std::string shown = file.filename().string();
  NIB_ASSIGN(std::ifstream in, open_regular_file(file));
  std::error_code error;
  const auto size = std::filesystem::file_size(file, error);
  if (error) return Status(Code::kNotFound, fmt::format("{}: cannot be read: {}", file.string(), error.message()));

  uint64_t length = 0;  // x86 and arm64 Linux are little endian, as the format is
  if (size < sizeof length || !in.read(reinterpret_cast<char*>(&length), sizeof length))
    return invalid("{}: {} bytes are no safetensors file", shown, size);
  if (length > kMaxHeaderBytes || length > size - sizeof length)
    return invalid("{}: a header of {} bytes does not fit the file of {} bytes; it is truncated or no safetensors file",
                   shown, length, size);
  std::string header(length, '\0');
  if (!in.read(header.data(), static_cast<std::streamsize>(length)))
    return invalid("{}: the header cannot be read", shown);
  const int64_t begin = static_cast<int64_t>(sizeof length + length);
  NIB_ASSIGN(std::vector<TensorInfo> tensors,
             parse_safetensors_header(header, begin, static_cast<int64_t>(size) - begin, shown));
  int64_t end = begin;
  for (const TensorInfo& t : tensors) end = std::max(end, t.offset + t.bytes);
  if (end == static_cast<int64_t>(size)) return tensors;
  return invalid("{}: its tensors end at byte {}, but the file is {} bytes long; download it again", shown, end, size);
}

Status write_safetensors(const std::filesystem::path& file, std::span<const OutTensor> tensors) {
  std::vector<const OutTensor*> order;
  for (const OutTensor& t : tensors) {
    NIB_CHECK_EQ(size_in_bytes(t.dtype, count_elements(t.shape)), static_cast<int64_t>(t.bytes.size()));
    order.push_back(&t);
  }
  std::stable_sort(order.begin(), order.end(), [](const OutTensor* a, const OutTensor* b) {
    return size_in_bytes(a->dtype, 1) > size_in_bytes(b->dtype, 1);
  });
  std::string header = header_json(order).dump();
  header.append((8 - header.size() % 8) % 8, ' ');
  const uint64_t length = header.size();

  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(&length), sizeof length);
  out.write(header.data(), static_cast<std::streamsize>(header.size()));
  for (const OutTensor* t : order)
    out.write(reinterpret_cast<const char*>(t->bytes.data()), static_cast<std::streamsize>(t->bytes.size()));
  out.close();
  if (out) return {};
  std::error_code ignored;
  if (std::filesystem::is_regular_file(file, ignored)) std::filesystem::remove(file, ignored);
  return Status(Code::kInvalidArgument, fmt::format("{}: cannot be written", file.string()));
}

}  // namespace nib
