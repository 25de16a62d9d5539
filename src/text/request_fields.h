// Reads fields of a request that may be absent or null, with the error the client will read.
//   NIB_ASSIGN(const bool last, read_bool(request, "continue_final_message", false));
#pragma once

#include <string>

#include "base/json.h"

namespace nib {

// The member, or null if there is none.
const Json& field(const Json& object, const char* key);

Result<bool> read_bool(const Json& object, const char* key, bool if_absent);

// Whether it is a string that is not empty.
bool has_text(const Json& value);

}  // namespace nib
