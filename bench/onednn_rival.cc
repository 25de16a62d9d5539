// oneDNN's BF16 matrix product behind one C function, in a module of its own that `nib bench ops` opens if it is there.
#include <omp.h>

#include <cstdint>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>

namespace {

using dnnl::memory;

struct Matmul {
  Matmul(int64_t tokens, int64_t out, int64_t in)
      : x({tokens, in}, memory::data_type::bf16, memory::format_tag::ab),
        w({in, out}, memory::data_type::bf16, memory::format_tag::ba),
        y({tokens, out}, memory::data_type::bf16, memory::format_tag::ab),
        matmul(dnnl::matmul::primitive_desc(dnnl::matmul::desc(x, w, y), engine)) {}

  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  memory::desc x, w, y;
  dnnl::matmul matmul;
};

}  // namespace

extern "C" {

void* nib_onednn_create(int threads, int64_t tokens, int64_t out, int64_t in) {
  omp_set_num_threads(threads);
  return new Matmul(tokens, out, in);
}

// y [tokens, out] = x [tokens, in] . w [out, in]^T, all bf16
void nib_onednn_run(void* handle, void* y, const void* x, const void* w) {
  Matmul& m = *static_cast<Matmul*>(handle);
  m.matmul.execute(m.stream, {{DNNL_ARG_SRC, memory(m.x, m.engine, const_cast<void*>(x))},
                              {DNNL_ARG_WEIGHTS, memory(m.w, m.engine, const_cast<void*>(w))},
                              {DNNL_ARG_DST, memory(m.y, m.engine, y)}});
  m.stream.wait();
}

void nib_onednn_destroy(void* handle) { delete static_cast<Matmul*>(handle); }
}
