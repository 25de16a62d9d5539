// How much memory there is: of the machine, or of the control group of this process where that is less.
//   if (plan.total_bytes() > memory_limit_bytes()) ...
#pragma once

#include <cstdint>

namespace nib {

int64_t memory_limit_bytes();

}  // namespace nib
