#include "gpu/cuda/warm_up.hpp"

#include <vector>

#include "core/errors.hpp"
#include "core/exact_sum.hpp"
#include "core/mx_blocks.hpp"
#include "gpu/cuda/cuda_stream.hpp"
#include "gpu/kernels.hpp"

namespace troupe::gpu {
namespace {

constexpr std::size_t kElements = 256;
constexpr std::chrono::seconds kLoading{120};

}  // namespace

core::Result<void> warm_up(CudaContext& context, MemoryPool& memory) {
  constexpr std::size_t kBytes = kElements * sizeof(float);
  const Buffer scratch = TRY(memory.allocate(4 * kBytes));
  const Stream stream = TRY(CudaStream::create(context, {.name = "warm-up"}));
  const auto floats = [&](std::size_t i) { return scratch.view().subview(i * kBytes, kBytes); };
  const Elements a{floats(0), core::DType::f32};
  const Elements b{floats(1).subview(0, kBytes / 2), core::DType::bf16};
  const BufferView sum = floats(2).subview(0, sizeof(core::ExactSquareSum));
  const ParameterStep step{.gradient = b, .master = a.view, .parameter = {}};
  const std::vector<core::TreeStep> steps = {{0, 1}};

  fill(a, 1, stream.get());
  cast(a, b, stream.get());
  scale(b, 1, stream.get());
  accumulate(b, a, stream.get());
  pack({floats(0), floats(1)}, scratch.view().subview(2 * kBytes, 2 * kBytes), stream.get());
  pack(std::vector<ConstElements>{a}, b, stream.get());
  round_to(core::DType::bf16, a, stream.get());
  const BufferView packed = floats(3).subview(0, static_cast<std::size_t>(core::mx_bytes(kElements)));
  for (const auto element : {core::DType::f8_e4m3, core::DType::f8_e5m2}) {
    round_to_mx(element, a, a, stream.get());
    pack_mx(element, a, packed, stream.get());
    unpack_mx(element, packed, kElements, a, stream.get());
  }
  tree_sum({.slots = {a, b}, .steps = steps, .output = a}, stream.get());
  zero(scratch.view(), stream.get());
  for (const Elements& values : {a, b}) add_squares(values, sum, stream.get());
  add_square_sums(sum, floats(3).subview(0, sum.bytes), stream.get());
  raise_to_largest(a, floats(3).subview(0, sizeof(std::uint32_t)), stream.get());
  sgd_step({.momentum = 0.5}, step, floats(2), stream.get());
  adam_step({}, 1, step, {floats(2), floats(3)}, stream.get());
  lion_step({}, step, floats(2), stream.get());
  const MatrixShape tall{.rows = kElements / 8, .columns = 8};
  const Buffer between = TRY(memory.allocate(muon_scratch_bytes(tall)));
  muon_step({}, tall, step, floats(2), between.view(), stream.get());
  return stream->synchronize(kLoading);
}

}  // namespace troupe::gpu
