// A reference drafter taken apart: its config and its tensors as floats, to be changed and put together again.
//   DrafterParts parts("dspark-tiny-rnn");
//   parts.tensors.erase("norm.weight");
//   parts.load().status();                  // names it
#pragma once

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "model/drafter.h"
#include "model/testing/make_checkpoint.h"

namespace nib::testing {

struct DrafterParts {
  Json config;
  std::map<std::string, std::pair<std::vector<int64_t>, std::vector<float>>> tensors;

  explicit DrafterParts(const char* folder) {
    const auto path = std::filesystem::path(NIB_SOURCE_DIR) / "tests/data/oracle" / folder;
    config = *read_json_file(path / "config.json");
    const Result<Checkpoint> file = Checkpoint::open_file(path / "model.safetensors");
    for (const auto& [name, t] : file->tensors()) {
      auto& [shape, values] = tensors[name];
      shape = t.shape;
      values.resize(t.bytes / 2);
      for (size_t i = 0; i < values.size(); ++i) {
        bf16 b;
        std::memcpy(&b, file->data(t).data() + 2 * i, 2);
        values[i] = float(b);
      }
    }
  }
  void set(const std::string& name, std::vector<int64_t> shape) {
    int64_t size = 1;
    for (int64_t d : shape) size *= d;
    std::vector<float> values(size);
    for (int64_t i = 0; i < size; ++i) values[i] = 0.3f * std::sin(static_cast<float>(7 * i + 1));
    tensors[name] = {std::move(shape), std::move(values)};
  }
  // In files of these names, the tensors dealt out among them.
  Status write(const std::filesystem::path& folder, const std::vector<std::string>& files = {"model.safetensors"},
               const std::string& prefix = "") const {
    std::vector<std::vector<OutTensor>> out(files.size());
    size_t i = 0;
    for (const auto& [name, t] : tensors) {
      const auto bytes = std::as_bytes(std::span(t.second));
      out[i++ % out.size()].push_back({prefix + name, DType::kF32, t.first, {bytes.begin(), bytes.end()}});
    }
    NIB_TRY(write_json_file(folder / "config.json", config));
    for (size_t f = 0; f < files.size(); ++f) NIB_TRY(write_safetensors(folder / files[f], out[f]));
    return {};
  }
  Result<std::unique_ptr<Drafter>> load(const DrafterOptions& options = {.f32 = true},
                                        const SharedTables* shared = nullptr) const {
    TempFolder folder;
    NIB_TRY(write(folder.path()));
    return load_drafter(folder.path(), options, shared);
  }
  const std::vector<float>& at(const std::string& name) const { return tensors.at(name).second; }
};

}  // namespace nib::testing
