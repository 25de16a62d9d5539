// The two halves of every fast product: rows are packed once, then any range of outputs is a task of its own.
//   const Plan plan = choose_plan(cx.isa, w.format, sizeof(T) == 2);
//   const Packed x = take_packed(cx, plan, tokens, in);     // then pack_row for each
//   plan.kernel(block_of(x, {0, tokens}, w, y, ...));       // any range of outputs
#pragma once

#include <functional>

#include "compute/cpu/kernels.h"
#include "compute/ops/gemm.h"

namespace nib::cpu {

// One arithmetic per instruction set, weight format and activation type.
struct Plan {
  Packing packing;
  void (*kernel)(const GemmBlock&);
};
Plan choose_plan(Isa isa, WeightFormat format, bool half_rows);

// Rows of x as a kernel wants them; lies in the workspace.
struct Packed {
  std::byte* data = nullptr;
  int64_t rows = 0, stride = 0;  // elements
  int64_t element_bytes = 0;
};

// Rows that are multiplied with one weight: tiles never reach over their border.
struct RowGroup {
  int64_t first = 0, count = 0;
};

// Room for rows of `in` columns.
Packed take_packed(Context& cx, const Plan& plan, int64_t rows, int64_t in);
// Packs x as the given row of its group.
template <class T>
void pack_row(const Plan& plan, const Packed& packed, const RowGroup& group, int64_t row, const T* x, int64_t in);

// The block of outputs [begin, end) of a group of packed rows; y is its first row's output 0.
GemmBlock block_of(const Packed& x, const RowGroup& group, const Weight& w, void* y, int64_t y_stride, bool y_half,
                   int64_t begin, int64_t end);

// Scratch for the kernels, one piece a thread.
View<std::byte, 2> take_scratch(Context& cx, int64_t in);

// Below so many multiplications a loop is done before a second thread would have helped.
constexpr int64_t kParallelWork = 1 << 14;

// Runs body(i, thread) for i in [0, n): here if the whole is small, else on the pool. `work` counts multiplications.
template <class F>
void run_parallel(Context& cx, int64_t n, int64_t work, const F& body) {
  if (work >= kParallelWork) return cx.pool.parallel_for(n, std::cref(body));  // a reference: nothing is allocated
  for (int64_t i = 0; i < n; ++i) body(i, 0);
}

// Outputs of one task: a multiple of 16. Few rows wait for memory and like long runs of weights; many like blocks that
// stay in the L2 cache.
int64_t choose_outputs(int64_t out, int64_t rows, int64_t tasks_wanted);

}  // namespace nib::cpu
