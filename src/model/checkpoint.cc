#include "model/checkpoint.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>

#include "base/file.h"

namespace nib {

namespace fs = std::filesystem;

// One file mapped read-only for as long as anybody reads from it.
struct Checkpoint::Mapping {
  const std::byte* data = nullptr;
  size_t size = 0;

  Mapping() = default;
  Mapping(const Mapping&) = delete;
  ~Mapping() {
    if (data) ::munmap(const_cast<std::byte*>(data), size);
  }

  static Result<std::shared_ptr<const Mapping>> map(const fs::path& file) {
    auto mapping = std::make_shared<Mapping>();
    std::error_code error;
    mapping->size = fs::file_size(file, error);
    const int fd = error ? -1 : ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return Status(Code::kNotFound, fmt::format("{}: cannot be opened", file.string()));
    void* p = ::mmap(nullptr, mapping->size, PROT_READ, MAP_SHARED, fd, 0);
    ::close(fd);
    if (p == MAP_FAILED) return invalid("{}: cannot be mapped into memory", file.string());
    mapping->data = static_cast<const std::byte*>(p);
    return std::shared_ptr<const Mapping>(std::move(mapping));
  }
};

namespace {

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kSingle = "model.safetensors";

// The shard files that an index names, each once. A name is a plain file name: an index cannot point out of its folder.
Result<std::set<std::string>> shard_files(const Json& weight_map) {
  std::set<std::string> files;
  for (const auto& [tensor, file] : weight_map.items()) {
    if (!file.is_string()) return invalid("{}: the file of {} is not a string", kIndex, tensor);
    const std::string& name = file.get_ref<const std::string&>();
    if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos)
      return invalid("{}: {} is said to be in \"{}\", which is not a file of this folder", kIndex, tensor, name);
    files.insert(name);
  }
  return files;
}

// N of the first file STEM-xxxxx-of-0000N.safetensors; 0: there is none.
int count_of_numbered(const fs::path& folder, const std::string& stem) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    int index = 0, count = 0, end = 0;
    if (!name.starts_with(stem + "-")) continue;
    const char* rest = name.c_str() + stem.size();
    if (std::sscanf(rest, "-%5d-of-%5d.safetensors%n", &index, &count, &end) == 2 && end > 0 && rest[end] == 0)
      return count;
  }
  return 0;
}

}  // namespace

Result<Json> read_json_file(const fs::path& file) {
  NIB_ASSIGN(std::ifstream in, open_regular_file(file));
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  Result<Json> json = parse_json(text);
  if (!json.ok()) return invalid("{}: {}", file.filename().string(), json.status().message());
  return json;
}

Status Checkpoint::add_shard(const fs::path& file) {
  NIB_ASSIGN(std::vector<TensorInfo> tensors, read_safetensors_header(file));
  const int shard = static_cast<int>(shards_.size());
  shards_.push_back(file);
  for (TensorInfo& t : tensors) {
    t.shard = shard;
    const auto [old, inserted] = tensors_.emplace(t.name, t);
    if (!inserted) return invalid("{} is in both {} and {}", t.name, shard_name(old->second), file.filename().string());
  }
  return {};
}

Status Checkpoint::check_index(const Json& weight_map) const {
  for (const auto& [name, file] : weight_map.items()) {
    const TensorInfo* t = find(name);
    const std::string& expected = file.get_ref<const std::string&>();
    if (!t || shard_name(*t) != expected) return invalid("{} is not in {}, where {} lists it", name, expected, kIndex);
  }
  for (const auto& [name, t] : tensors_)
    if (!weight_map.contains(name)) return invalid("{} is in {} but not in {}", name, shard_name(t), kIndex);
  return {};
}

Result<Checkpoint> Checkpoint::open(const fs::path& folder) {
  Checkpoint c;
  std::error_code error;
  if (!fs::is_directory(folder, error))
    return Status(Code::kNotFound, fmt::format("{}: no such folder", folder.string()));
  if (!fs::exists(folder / kIndex, error)) {
    if (!fs::exists(folder / kSingle, error))
      return Status(Code::kNotFound, fmt::format("{}: holds neither {} nor {}", folder.string(), kSingle, kIndex));
    NIB_TRY(c.add_shard(folder / kSingle));
    return c;
  }
  NIB_ASSIGN(const Json index, read_json_file(folder / kIndex));
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    return invalid("{}: has no object \"weight_map\"", kIndex);
  NIB_ASSIGN(const std::set<std::string> files, shard_files(index["weight_map"]));
  for (const std::string& file : files) {
    if (!fs::exists(folder / file, error))
      return Status(Code::kNotFound, fmt::format("{}: {} names it but it is missing; download the checkpoint again",
                                                 (folder / file).string(), kIndex));
    NIB_TRY(c.add_shard(folder / file));
  }
  NIB_TRY(c.check_index(index["weight_map"]));
  return c;
}

bool Checkpoint::has_numbered(const fs::path& folder, const std::string& stem) {
  return count_of_numbered(folder, stem) > 0;
}

Result<Checkpoint> Checkpoint::open_numbered(const fs::path& folder, const std::string& stem) {
  Checkpoint c;
  const int count = count_of_numbered(folder, stem);
  if (count <= 0) return Status(Code::kNotFound, fmt::format("{}: holds no {}-00001-of-...", folder.string(), stem));
  for (int i = 1; i <= count; ++i) {
    const fs::path file = folder / fmt::format("{}-{:05}-of-{:05}.safetensors", stem, i, count);
    std::error_code error;
    if (!fs::exists(file, error))
      return Status(
          Code::kNotFound,
          fmt::format("{}: is missing beside the other shards; download the checkpoint again", file.string()));
    NIB_TRY(c.add_shard(file));
  }
  return c;
}

Result<Checkpoint> Checkpoint::open_file(const fs::path& file) {
  Checkpoint c;
  NIB_TRY(c.add_shard(file));
  NIB_TRY(c.map());
  return c;
}

const TensorInfo* Checkpoint::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

int64_t Checkpoint::total_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, t] : tensors_) bytes += t.bytes;
  return bytes;
}

Status Checkpoint::map() {
  while (mappings_.size() < shards_.size()) {
    NIB_ASSIGN(std::shared_ptr<const Mapping> m, Mapping::map(shards_[mappings_.size()]));
    mappings_.push_back(std::move(m));
  }
  for (const auto& [name, t] : tensors_)
    if (static_cast<size_t>(t.offset + t.bytes) > mappings_[t.shard]->size)
      return invalid("{}: was cut short while it was being opened", shard_name(t));
  return {};
}

std::span<const std::byte> Checkpoint::data(const TensorInfo& t) const {
  NIB_CHECK(static_cast<size_t>(t.shard) < mappings_.size(), "{} is not mapped", t.name);
  return {mappings_[t.shard]->data + t.offset, static_cast<size_t>(t.bytes)};
}

Result<fs::path> find_model(const std::string& model, const fs::path& hf_home) {
  std::error_code error;
  if (fs::is_directory(model, error)) return fs::path(model);
  const size_t slash = model.find('/');
  const bool hub_id = slash != std::string::npos && slash > 0 && slash + 1 < model.size() && model.front() != '.' &&
                      model.front() != '~' && model.find('/', slash + 1) == std::string::npos;
  if (fs::exists(model, error))
    return Status(
        Code::kNotFound,
        fmt::format("{}: is no folder; MODEL is the folder that holds config.json, tokenizer and weights: give "
                    "{} if it does",
                    model, fs::absolute(model, error).parent_path().string()));
  if (!hub_id) return Status(Code::kNotFound, fmt::format("{}: no such folder", model));

  const fs::path repo = hf_home / "hub" / ("models--" + model.substr(0, slash) + "--" + model.substr(slash + 1));
  std::string revision;
  std::ifstream(repo / "refs" / "main") >> revision;
  const fs::path snapshot = repo / "snapshots" / revision;
  if (!revision.empty() && revision.find('/') == std::string::npos && fs::is_directory(snapshot, error))
    return snapshot;
  return Status(Code::kNotFound,
                fmt::format("{}: neither a folder nor in the Hugging Face cache; run `hf download {}` (it goes to {}), "
                            "or give the folder that holds its config.json",
                            model, model, repo.string()));
}

}  // namespace nib
