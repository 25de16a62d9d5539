// Bounds on what one request may ask, beside those of the command line. One place, so that each is said and tested.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nib::limits {

inline constexpr int kJsonDepth = 128;
inline constexpr size_t kJsonMembers = 10'000;    // of one object: looking one up is linear
inline constexpr size_t kJsonValues = 4'000'000;  // of a whole body
inline constexpr size_t kMessages = 10'000;
inline constexpr size_t kContentParts = 100'000;  // of all messages
inline constexpr size_t kPrompts = 2048;          // of /v1/completions
inline constexpr int64_t kSequences = 128;        // n
inline constexpr size_t kStops = 64;
inline constexpr size_t kStopBytes = 4096;  // of one stop string
inline constexpr size_t kStopTokenIds = 1024;
inline constexpr size_t kBadWords = 1024;
inline constexpr size_t kLogitBias = 1024;
inline constexpr size_t kLogprobTokenIds = 128;
inline constexpr size_t kRequestIdBytes = 128;
inline constexpr size_t kCacheSaltBytes = 128;
inline constexpr int64_t kEventsPerSequence = 2048;  // of a stream, that may wait for a slow reader

}  // namespace nib::limits
