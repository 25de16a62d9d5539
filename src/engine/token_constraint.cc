#include "engine/token_constraint.h"

#include "base/check.h"

namespace nib {

int64_t fill_masks(TokenConstraint& constraint, std::span<const int32_t> drafts, View<uint32_t, 2> masks) {
  const auto num_drafts = static_cast<int64_t>(drafts.size());
  NIB_CHECK(masks.dim(0) > num_drafts, "{} masks for {} drafts", masks.dim(0), num_drafts);
  int64_t num_accepted = 0;
  const auto fill = [&] { constraint.fill_mask({masks.row(num_accepted), static_cast<size_t>(masks.dim(1))}); };
  fill();
  while (num_accepted < num_drafts && constraint.accept(drafts[num_accepted])) {
    ++num_accepted;
    fill();
  }
  constraint.rewind(num_accepted);
  return num_accepted + 1;
}

}  // namespace nib
