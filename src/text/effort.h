// The thinking effort of a chat request: a number from 0 to 0.99 that one system line tells the model.
//   NIB_ASSIGN(std::optional<double> effort, read_effort(request, default_template_kwargs));
//   if (effort) text_block(effort_line(*effort));
#pragma once

#include <optional>
#include <string>

#include "base/json.h"

namespace nib {

// The request's reasoning_effort, else that of its chat_template_kwargs, else of the server's defaults, else 0.9.
// Nothing if template arguments ask for an effort that has no meaning: then no line is rendered, as in vLLM.
Result<std::optional<double>> read_effort(const Json& request, const Json& default_template_kwargs);

std::string effort_line(double effort);  // "Thinking effort level: 0.9"

}  // namespace nib
