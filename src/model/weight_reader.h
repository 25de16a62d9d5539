// Turns bound tensors into what a forward pass reads: in place where the checkpoint's layout serves, else converted
// once.
//   WeightReader reader(std::move(checkpoint), check_scales);
//   Weight q = reader.matrix(b);   View<const bf16, 1> g = reader.vector<bf16>(b);
//   NIB_TRY(reader.status());      weights.owner = reader.owner();
// Converted: F16 (to F32, exact), small vectors to the activation type, rows of gates and ups that lie apart, and
// elements that are not aligned in the file.
#pragma once

#include <memory>
#include <vector>

#include "compute/tensor/buffer.h"
#include "compute/tensor/view.h"
#include "model/checkpoint.h"
#include "model/tensor_table.h"

namespace nib {

// A checkpoint bound to the network of a config, checked, and mapped.
struct OpenedWeights {
  std::shared_ptr<const Checkpoint> checkpoint;
  Binding binding;  // points into *checkpoint
};

// Refuses what bind_tensors refuses, and weights of more bytes than limit_bytes, before anything is mapped. Logs where
// tensors and declared precision differ.
Result<OpenedWeights> open_weights(const ModelConfig& config, Checkpoint checkpoint, int64_t limit_bytes);

class WeightReader {
 public:
  // REQUIRES a mapped checkpoint. Scales of checkpoints under 1 GB are always checked.
  WeightReader(std::shared_ptr<const Checkpoint> checkpoint, bool check_scales);

  // Everything the results point into.
  std::shared_ptr<const void> owner() const { return memory_; }
  // The first bad value met: a NaN or negative scale, an outer scale that is no number.
  const Status& status() const { return status_; }

  // A plain matrix [rows, columns]: stored BF16 stays BF16, F32 and F16 become F32. Absent: empty.
  Weight matrix(const BoundTensor& b);
  // Two matrices [rows, columns] as one whose rows alternate: gate 0, up 0, gate 1, ...
  Weight interleaved(const BoundTensor& gate, const BoundTensor& up);
  // A stacked tensor [experts, rows, columns], plain or packed, as one matrix an expert.
  std::vector<Weight> experts(const BoundTensor& b);
  std::vector<Weight> interleaved_experts(const BoundTensor& gate, const BoundTensor& up);

  // One an expert; 1 where the format has none.
  std::vector<float> outer_scales(const BoundTensor& b, int64_t experts);

  template <class T>
  View<const T, 1> vector(const BoundTensor& b) {
    if (!b.present()) return {};
    return View<const T, 1>(elements<T>(*b.info), {count(*b.info)});
  }
  // Row i of a tensor whose last axis has `width` elements.
  template <class T>
  View<const T, 1> row(const BoundTensor& b, int64_t i, int64_t width) {
    return View<const T, 1>(elements<T>(*b.info) + i * width, {width});
  }
  // The tensor as [count / columns, columns]; absent: empty.
  template <class T>
  View<const T, 2> table(const BoundTensor& b, int64_t columns) {
    if (!b.present()) return {};
    return View<const T, 2>(elements<T>(*b.info), {count(*b.info) / columns, columns});
  }
  // A single value; absent: 1.
  float scalar(const BoundTensor& b) { return b.present() ? *elements<float>(*b.info) : 1.0f; }

 private:
  struct Memory {
    std::shared_ptr<const Checkpoint> checkpoint;
    std::vector<Buffer> buffers;
  };
  struct Plane {  // bytes of one expert after the other
    const std::byte* data = nullptr;
    int64_t expert_bytes = 0;
  };

  static int64_t count(const TensorInfo& t) { return t.bytes / size_in_bytes(t.dtype, 1); }
  template <class T>
  const T* elements(const TensorInfo& t);
  const std::byte* as_dtype(const TensorInfo& t, DType want);
  std::byte* allocate(int64_t bytes);
  Weight plain(const TensorInfo& t, int64_t rows, int64_t columns);
  Plane plane(const TensorInfo& t, const BoundTensor& b, int64_t experts, int64_t rows);
  const std::byte* alternate_rows(const std::byte* gates, const std::byte* ups, int64_t rows, int64_t row_bytes,
                                  std::byte* out);
  void check_scale_bytes(const BoundTensor& b);
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  std::shared_ptr<Memory> memory_;
  const Checkpoint& checkpoint_;
  const bool check_scales_;
  Status status_;
};

// Index of the first byte that is no valid scale of the format (E4M3: NaN or sign bit; E8M0: 255), or -1.
int64_t find_bad_scale(std::span<const std::byte> scales, WeightFormat format);

}  // namespace nib
