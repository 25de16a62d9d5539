#include "compute/cpu/gemm.h"

#include <algorithm>
#include <cstring>

namespace nib::cpu {

namespace {

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

}  // namespace

Plan choose_plan(Isa isa, WeightFormat format, bool half_rows) {
  if (isa == Isa::kAvx2 || !half_rows || format == WeightFormat::kF32) return {Packing::kFloat, avx2::gemm};
  const bool tiles = isa == Isa::kAmx, codes = format != WeightFormat::kBF16;
  if (tiles) return codes ? Plan{Packing::kSplitPairs, amx::gemm_codes} : Plan{Packing::kPairs, amx::gemm_half};
  return codes ? Plan{Packing::kSplit, avx512::gemm_codes} : Plan{Packing::kHalf, avx512::gemm_half};
}

Packed take_packed(Context& cx, const Plan& plan, int64_t rows, int64_t in) {
  const int64_t bytes = plan.packing == Packing::kFloat ? 4 : 2, stride = round_up(in, kPadding);
  return {cx.workspace.take<std::byte, 1>({rows * stride * bytes}).data(), rows, stride, bytes};
}

namespace {

// Writes a row into its tile: the pairs of a row lie as far apart as the tile has rows.
void pack_pairs(const Packed& packed, const RowGroup& group, int64_t row, const bf16* x, int64_t in, bool split) {
  const int64_t tile = row / kTileRows * kTileRows, rows = std::min(kTileRows, group.count - tile);
  Half* to = reinterpret_cast<Half*>(packed.data) + (group.first + tile) * packed.stride + (row - tile) * 2;
  const auto put = [&](int64_t column, Half value) { to[column / 2 * rows * 2 + column % 2] = value; };
  for (int64_t k = 0; k < packed.stride; ++k) {
    const int64_t column = split ? k / 64 * 64 + k % 2 * 32 + k % 64 / 2 : k;
    put(column, k < in ? x[k].bits : Half{0});
  }
}

}  // namespace

template <class T>
void pack_row(const Plan& plan, const Packed& packed, const RowGroup& group, int64_t row, const T* x, int64_t in) {
  if constexpr (sizeof(T) == 2)
    if (plan.packing == Packing::kPairs || plan.packing == Packing::kSplitPairs)
      return pack_pairs(packed, group, row, x, in, plan.packing == Packing::kSplitPairs);
  std::byte* to = packed.data + (group.first + row) * packed.stride * packed.element_bytes;
  std::memset(to + in * packed.element_bytes, 0, (packed.stride - in) * packed.element_bytes);
  if constexpr (sizeof(T) == 2) {
    if (plan.packing == Packing::kSplit) return avx512::split_row(reinterpret_cast<Half*>(to), &x->bits, in);
    if (plan.packing == Packing::kFloat) {
      for (int64_t k = 0; k < in; ++k) reinterpret_cast<float*>(to)[k] = as_float(x[k]);
      return;
    }
  }
  std::memcpy(to, x, in * sizeof(T));
}

GemmBlock block_of(const Packed& x, const RowGroup& group, const Weight& w, void* y, int64_t y_stride, bool y_half,
                   int64_t begin, int64_t end) {
  GemmBlock g;
  g.x = x.data + group.first * x.stride * x.element_bytes, g.x_stride = x.stride, g.tokens = group.count;
  g.format = static_cast<Format>(w.format), g.in = w.in, g.outer = w.outer;
  g.data = static_cast<const uint8_t*>(w.data), g.scales = w.scales;
  g.y = y, g.y_stride = y_stride, g.y_half = y_half;
  g.begin = begin, g.end = end;
  return g;
}

View<std::byte, 2> take_scratch(Context& cx, int64_t in) {
  return cx.workspace.take<std::byte, 2>({cx.pool.num_threads(), gemm_scratch(in)});
}

int64_t choose_outputs(int64_t out, int64_t rows, int64_t tasks_wanted) {
  constexpr int64_t kFewRows = 6, kBlock = 64;
  const int64_t outputs = std::max<int64_t>(16, round_up(out / std::max<int64_t>(1, tasks_wanted), 16));
  return rows <= kFewRows ? outputs : std::min(outputs, kBlock);
}

namespace {

// A product whose rows are packed; its tasks are [begin, begin + tasks) of all that run together.
struct Job {
  Plan plan;
  Packed x;
  const Weight* w;
  void* y;
  int64_t y_stride;
  bool y_half;
  int64_t step, begin, tasks;
};

template <class T>
bool is_same(View<const T, 2> a, View<const T, 2> b) {
  return a.data() == b.data() && a.shape() == b.shape() && a.stride(0) == b.stride(0);
}

template <class T>
Packed pack_rows(Context& cx, const Plan& plan, View<const T, 2> x) {
  const int64_t rows = x.dim(0), in = x.dim(1);
  const Packed packed = take_packed(cx, plan, rows, in);
  run_parallel(cx, rows, rows * in / 8, [&](int64_t t, int) { pack_row(plan, packed, {0, rows}, t, x.row(t), in); });
  return packed;
}

template <class T, class Y>
Job make_job(Context& cx, View<Y, 2> y, const Packed& x, const Plan& plan, const Weight& w, int64_t begin) {
  const int64_t step = choose_outputs(w.out, x.rows, 4 * cx.pool.num_threads());
  return {plan, x, &w, y.data(), y.stride(0), sizeof(Y) == 2, step, begin, (w.out + step - 1) / step};
}

void run_jobs(Context& cx, std::span<const Job> jobs) {
  int64_t work = 0, in = 0;
  for (const Job& j : jobs) work += j.x.rows * j.w->in * j.w->out, in = std::max(in, j.w->in);
  const View<std::byte, 2> scratch = take_scratch(cx, in);
  run_parallel(cx, jobs.back().begin + jobs.back().tasks, work, [&](int64_t i, int thread) {
    size_t j = 0;
    while (i >= jobs[j].begin + jobs[j].tasks) ++j;
    const Job& job = jobs[j];
    const int64_t output = (i - job.begin) * job.step;
    GemmBlock g = block_of(job.x, {0, job.x.rows}, *job.w, job.y, job.y_stride, job.y_half, output,
                           std::min(job.w->out, output + job.step));
    g.scratch = scratch.row(thread);
    job.plan.kernel(g);
  });
}

}  // namespace

template <class T, class Y>
void gemm(Context& cx, View<Y, 2> y, View<const T, 2> x, const Weight& w) {
  const Plan plan = choose_plan(cx.isa, w.format, sizeof(T) == 2);
  Workspace::Scope scope(cx.workspace);
  const Job job = make_job<T>(cx, y, pack_rows(cx, plan, x), plan, w, 0);
  run_jobs(cx, {&job, 1});
}

template <class T>
void gemm_all(Context& cx, std::span<const ops::Product<T>> products) {
  Workspace::Scope scope(cx.workspace);
  Job jobs[ops::kMaxProducts];
  int64_t tasks = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    const auto& [y, x, w] = products[i];
    const Plan plan = choose_plan(cx.isa, w->format, sizeof(T) == 2);
    size_t same = 0;  // the first product of the same rows in the same packing
    while (same < i && !(is_same(products[same].x, x) && jobs[same].plan.packing == plan.packing)) ++same;
    const Packed packed = same < i ? jobs[same].x : pack_rows(cx, plan, x);
    jobs[i] = make_job<T>(cx, y, packed, plan, *w, tasks);
    tasks += jobs[i].tasks;
  }
  if (!products.empty()) run_jobs(cx, {jobs, products.size()});
}

template void pack_row(const Plan&, const Packed&, const RowGroup&, int64_t, const float*, int64_t);
template void pack_row(const Plan&, const Packed&, const RowGroup&, int64_t, const bf16*, int64_t);
template void gemm(Context&, View<float, 2>, View<const float, 2>, const Weight&);
template void gemm(Context&, View<bf16, 2>, View<const bf16, 2>, const Weight&);
template void gemm(Context&, View<float, 2>, View<const bf16, 2>, const Weight&);
template void gemm_all(Context&, std::span<const ops::Product<float>>);
template void gemm_all(Context&, std::span<const ops::Product<bf16>>);

}  // namespace nib::cpu
