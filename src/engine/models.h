// The networks of an engine: the target and, for speculation with DSpark, its drafter.
//   NIB_ASSIGN(Models models, load_models(folder, options, speculation));
//   Engine::start(std::move(models), config);
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "engine/spec_decode/speculative_config.h"
#include "model/drafter.h"
#include "model/network.h"

namespace nib {

struct Models {
  std::unique_ptr<Network> target;
  std::unique_ptr<Drafter> drafter = nullptr;  // may be null; reads tables of the target

  // Of the target, then the drafter's.
  std::vector<CacheSpec> cache_specs() const {
    std::vector<CacheSpec> specs = target->cache_specs();
    if (drafter) specs.push_back(drafter->cache_spec());
    return specs;
  }
};

// The target of `folder` with rings long enough for the drafts of `speculation`, and the drafter that it names: its own
// folder, or that of the target. A drafter made for another target is refused by name.
Result<Models> load_models(const std::filesystem::path& folder, const LoadOptions& options,
                           const SpeculativeConfig& speculation);

}  // namespace nib
