// Inkling 2: block attention residuals over sliding and full layers with clips, sinks, gates and a mixture of experts.
//   Result<std::unique_ptr<Network>> net = make_inkling2(config, std::move(checkpoint), options);
#pragma once

#include <memory>

#include "model/checkpoint.h"
#include "model/network.h"

namespace nib {

Result<std::unique_ptr<Network>> make_inkling2(const ModelConfig& config, Checkpoint checkpoint,
                                               const LoadOptions& options, bool check_scales);

// Bytes of activations that a step needs at most, from the constants alone; element_bytes: of the activation type.
int64_t inkling2_workspace_bytes(const ModelConfig& config, int64_t rows, int64_t logit_rows, int64_t num_threads,
                                 int64_t element_bytes);

}  // namespace nib
