// What a report says of where and when it was measured.
//   Json report = {{"cpu", cpu_name()}, {"date", utc_date()}};
#pragma once

#include <string>

namespace nib::cli {

std::string cpu_name();
std::string utc_date();  // "2026-12-01 10:42 UTC"

}  // namespace nib::cli
