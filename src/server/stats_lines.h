// The lines of figures that a server logs while it works, in the words of vLLM.
//   for (const std::string& line : stats_lines(before, engine.stats(), 10)) log::info("{}", line);
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"

namespace nib {

// What happened between two readings that lie `seconds` apart: none if nothing did; with drafts, a second line.
std::vector<std::string> stats_lines(const EngineStats& before, const EngineStats& now, double seconds);

}  // namespace nib
