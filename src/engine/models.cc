#include "engine/models.h"

#include <algorithm>

namespace nib {

Result<Models> load_models(const std::filesystem::path& folder, const LoadOptions& options,
                           const SpeculativeConfig& speculation) {
  LoadOptions target = options;
  target.max_rejected_rows = std::max(options.max_rejected_rows, speculation.max_drafts());
  Models models;
  if (speculation.method != SpeculativeConfig::Method::kDspark) {
    NIB_ASSIGN(models.target, load_network(folder, target));
    return models;
  }
  const std::filesystem::path drafter = speculation.model.empty() ? folder : std::filesystem::path(speculation.model);
  NIB_ASSIGN(const DrafterConfig config, DrafterConfig::load(drafter));
  NIB_ASSIGN(const ModelConfig model, ModelConfig::load(folder));
  NIB_TRY(check_target(config, model));
  NIB_ASSIGN(target.taps, resolve_taps(config.taps, model.num_layers()));
  target.max_rejected_rows = std::max(target.max_rejected_rows, config.max_draft_tokens());
  NIB_ASSIGN(models.target, load_network(folder, target));
  const SharedTables shared = models.target->shared_tables();
  DrafterOptions drafting;
  drafting.f32 = options.f32;
  drafting.kv_block_size = options.kv_block_size;
  NIB_ASSIGN(models.drafter, load_drafter(drafter, drafting, &shared));
  return models;
}

}  // namespace nib
