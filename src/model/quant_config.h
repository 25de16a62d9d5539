// What a checkpoint declares about precision (config.json's quantization_config, hf_quant_config.json). The tensors
// decide; a declaration only serves a plan made without them, and a warning where the two differ.
//   Result<DeclaredPrecision> d = DeclaredPrecision::load(folder);
//   for (const std::string& w : cross_check(*d, binding)) log::warn("{}", w);
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "model/tensor_table.h"

namespace nib {

struct DeclaredPrecision {
  std::string default_algo;                    // "NVFP4", "MXFP8", "MIXED_PRECISION", ... or empty
  std::map<std::string, std::string> modules;  // "model.llm.layers.3.mlp.experts" -> "NVFP4"
  std::vector<std::string> excluded;           // modules at full precision, by name

  // Format of the experts of a layer; kBF16 where nothing is declared.
  WeightFormat experts_format(int64_t layer) const;

  static DeclaredPrecision from_json(const Json& config);  // either file's object; what it does not know is skipped
  // Of a folder (hf_quant_config.json first, else config.json) or of one config file.
  static Result<DeclaredPrecision> load(const std::filesystem::path& folder_or_file);
};

// One sentence for each way in which declaration and tensors differ.
std::vector<std::string> cross_check(const DeclaredPrecision& declared, const Binding& binding);

std::string_view name(WeightFormat format);  // "NVFP4", "MXFP8", "BF16", "F32"

}  // namespace nib
