#include "model/network.h"

#include <algorithm>

#include "model/inkling.h"
#include "model/inkling2.h"

namespace nib {

namespace {

struct Entry {
  Generation generation;
  Result<std::unique_ptr<Network>> (*make)(const ModelConfig&, Checkpoint, const LoadOptions&, bool check_scales);
};

constexpr Entry kNetworks[] = {
    {Generation::kInkling, make_inkling},
    {Generation::kInkling2, make_inkling2},
};

// Scales of so small a checkpoint are read at every start; larger ones are checked by `nib check`.
constexpr int64_t kAlwaysCheckedBytes = 1'000'000'000;

int64_t total_bytes(const Checkpoint& checkpoint) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) bytes += tensor.bytes;
  return bytes;
}

}  // namespace

Result<std::unique_ptr<Network>> load_network(const std::filesystem::path& folder, const LoadOptions& options) {
  NIB_ASSIGN(const ModelConfig config, ModelConfig::load(folder));
  NIB_ASSIGN(Checkpoint checkpoint, Checkpoint::open(folder));
  const bool check_scales = total_bytes(checkpoint) < kAlwaysCheckedBytes;
  const auto entry = std::find_if(std::begin(kNetworks), std::end(kNetworks),
                                  [&](const Entry& e) { return e.generation == config.generation; });
  NIB_CHECK(entry != std::end(kNetworks), "no network for {}", config.architecture);
  return entry->make(config, std::move(checkpoint), options, check_scales);
}

}  // namespace nib
