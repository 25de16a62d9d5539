#include "compute/ref/ref.h"

namespace nib::ref {

void decode_row(float* row, const Weight& w, int64_t n) {
  const uint8_t* data = static_cast<const uint8_t*>(w.data) + n * row_bytes(w.format, w.in);
  const uint8_t* scales = w.scales + n * row_scale_bytes(w.format, w.in);
  switch (w.format) {
    case WeightFormat::kF32:
      for (int64_t k = 0; k < w.in; ++k) row[k] = reinterpret_cast<const float*>(data)[k];
      break;
    case WeightFormat::kBF16:
      for (int64_t k = 0; k < w.in; ++k) row[k] = as_float(reinterpret_cast<const bf16*>(data)[k]);
      break;
    case WeightFormat::kNvfp4:
      for (int64_t k = 0; k < w.in; k += 2) {
        const float scale = e4m3_to_float(scales[k / 16]);
        row[k] = kE2M1[data[k / 2] & 15] * scale;
        row[k + 1] = kE2M1[data[k / 2] >> 4] * scale;
      }
      break;
    case WeightFormat::kMxfp8:
      for (int64_t k = 0; k < w.in; ++k) row[k] = e4m3_to_float(data[k]) * e8m0_to_float(scales[k / 32]);
      break;
  }
}

template <class T, class Y>
void gemm(Context& cx, View<Y, 2> y, View<const T, 2> x, const Weight& w) {
  Workspace::Scope scope(cx.workspace);
  const View<float, 2> scratch = cx.workspace.take<float, 2>({cx.pool.num_threads(), w.in});
  cx.pool.parallel_for(w.out, [&](int64_t n, int thread) {
    const float* row = scratch.row(thread);
    decode_row(scratch.row(thread), w, n);
    for (int64_t t = 0; t < x.dim(0); ++t) {
      float sum = 0;
      for (int64_t k = 0; k < w.in; ++k) sum += as_float(x(t, k)) * row[k];
      y(t, n) = to<Y>(sum * w.outer);
    }
  });
}

template void gemm(Context&, View<float, 2>, View<const float, 2>, const Weight&);
template void gemm(Context&, View<bf16, 2>, View<const bf16, 2>, const Weight&);
template void gemm(Context&, View<float, 2>, View<const bf16, 2>, const Weight&);

}  // namespace nib::ref
