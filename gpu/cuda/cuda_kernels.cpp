#include "gpu/cuda/cuda_kernels.hpp"

#include <cuda_runtime_api.h>

#include "core/errors.hpp"
#include "gpu/cuda/cuda_stream.hpp"
#include "gpu/cuda/kernels/launch.hpp"
#include "gpu/cuda/tree_passes.hpp"
#include "gpu/kernel_checks.hpp"

namespace troupe::gpu {
namespace {

/// The alignment of partial sums, so that kernels load packs of them.
constexpr std::size_t kPartialAlignment = 256;

formats::Format format_of(core::DType dtype) {
  switch (dtype) {
    case core::DType::f32:
      return formats::Format::f32;
    case core::DType::f16:
      return formats::Format::f16;
    case core::DType::bf16:
      return formats::Format::bf16;
    case core::DType::f8_e4m3:
      return formats::Format::f8_e4m3;
    case core::DType::f8_e5m2:
      return formats::Format::f8_e5m2;
    default:
      CHECK(false, "kernels take floating elements of at most 32 bits");
  }
}

DeviceArray array_of(ConstElements elements) {
  // Each launch determines which arrays its kernel writes.
  return {const_cast<std::byte*>(elements.view.data), format_of(elements.dtype)};
}

DeviceArray floats_of(BufferView view) {
  return {view.data, formats::Format::f32};
}

OptimizerArrays arrays_of(const ParameterStep& step, BufferView first, BufferView second) {
  OptimizerArrays arrays;
  arrays.gradient = array_of(step.gradient);
  arrays.gradient_factor = step.gradient_factor;
  arrays.master = floats_of(step.master);
  if (step.parameter.view.bytes > 0) arrays.parameter = array_of(step.parameter);
  arrays.first = floats_of(first);
  arrays.second = floats_of(second);
  return arrays;
}

/// For at most TreeProgram::kSlots slots, and fewer steps.
TreeProgram program_of(const TreeSum& sum) {
  CHECK(sum.steps.size() < TreeProgram::kSlots, "a tree sum has fewer steps than slots");
  TreeProgram program;
  for (std::size_t place = 0; place < sum.slots.size(); ++place) {
    const ConstElements slot = sum.slots[place];
    program.formats[program.slot_count] = format_of(slot.dtype);
    program.slots[program.slot_count++] = slot.view.data;
  }
  for (const auto step : sum.steps) {
    program.destinations[program.step_count] = static_cast<std::uint8_t>(step.destination);
    program.sources[program.step_count++] = static_cast<std::uint8_t>(step.source);
  }
  program.factor = sum.factor;
  program.output = array_of(sum.output);
  return program;
}

/// Copies or casts, batched by the number that fits into one launch.
template <class List>
class Batches {
 public:
  using Launch = cudaError_t (*)(const List&, const LaunchTarget&);
  /// `list` has no entries yet.
  Batches(const List& list, Launch launch, const LaunchTarget& target)
      : target_(target), launch_(launch), list_(list) {}

  /// `size` in the list's unit.
  void add(ConstBufferView source, BufferView destination, std::size_t size) {
    if (size == 0) return;
    if (list_.count == List::kMost) flush();
    list_.sources[list_.count] = source.data;
    list_.destinations[list_.count] = destination.data;
    list_.sizes[list_.count] = size;
    ++list_.count;
  }

  cudaError_t flush() {
    if (status_ == cudaSuccess) status_ = launch_(list_, target_);
    list_.count = 0;
    return status_;
  }

 private:
  const LaunchTarget& target_;
  Launch launch_;
  List list_;
  cudaError_t status_ = cudaSuccess;
};

Batches<CopyList> copies_on(const LaunchTarget& target) {
  return {{}, launch_copies, target};
}

Batches<CastList> casts_on(const LaunchTarget& target, core::DType from, core::DType to) {
  CastList list;
  list.from = format_of(from);
  list.to = format_of(to);
  return {list, launch_casts, target};
}

/// What is this small, a kernel writes to pinned memory. The engine that copies to the host takes one copy
/// after another: a loss, or the sums on which a step is decided, would wait until all that a save has given
/// it is copied.
constexpr std::size_t kWrittenByKernel = 4096;

cudaMemoryType memory_type(const void* memory) {
  cudaPointerAttributes found{};
  const cudaError_t status = cudaPointerGetAttributes(&found, memory);
  return status == cudaSuccess ? found.type : cudaMemoryTypeUnregistered;
}

bool is_written_by_kernel(ConstBufferView source, BufferView destination) {
  return source.bytes <= kWrittenByKernel && memory_type(destination.data) == cudaMemoryTypeHost &&
         memory_type(source.data) == cudaMemoryTypeDevice;
}

}  // namespace

template <class Launch>
void CudaKernels::run(std::string_view label, const Launch& launch) {
  auto& context = stream_.context();
  stream_.run(label, [&](cudaStream_t stream) {
    return launch(LaunchTarget{stream, context.info.multiprocessors, &context.occupancy,
                               context.info.has_fast_doubles});
  });
}

void CudaKernels::copy(ConstBufferView source, BufferView destination) {
  check_copy(source, destination);
  if (source.bytes == 0) return;
  if (is_written_by_kernel(source, destination)) {
    return run("copy", [&](const LaunchTarget& target) {
      auto copies = copies_on(target);
      copies.add(source, destination, source.bytes);
      return copies.flush();
    });
  }
  stream_.run("copy", [=](cudaStream_t stream) {
    return cudaMemcpyAsync(destination.data, source.data, source.bytes, cudaMemcpyDefault, stream);
  });
}

void CudaKernels::zero(BufferView destination) {
  if (destination.bytes == 0) return;
  stream_.run("zero", [=](cudaStream_t stream) {
    return cudaMemsetAsync(destination.data, 0, destination.bytes, stream);
  });
}

void CudaKernels::pack(std::span<const ConstBufferView> ranges, BufferView flat) {
  check_ranges(ranges, flat.bytes);
  run("pack", [&](const LaunchTarget& target) {
    auto copies = copies_on(target);
    std::size_t first = 0;
    for (const ConstBufferView& range : ranges) {
      copies.add(range, flat.subview(first, range.bytes), range.bytes);
      first += range.bytes;
    }
    return copies.flush();
  });
}

void CudaKernels::unpack(ConstBufferView flat, std::span<const BufferView> ranges) {
  check_ranges(ranges, flat.bytes);
  run("unpack", [&](const LaunchTarget& target) {
    auto copies = copies_on(target);
    std::size_t first = 0;
    for (const BufferView& range : ranges) {
      copies.add(flat.subview(first, range.bytes), range, range.bytes);
      first += range.bytes;
    }
    return copies.flush();
  });
}

void CudaKernels::pack(std::span<const ConstElements> ranges, Elements flat) {
  check_element_ranges(ranges, flat.count());
  if (ranges.empty()) return;
  run("pack", [&](const LaunchTarget& target) {
    auto casts = casts_on(target, ranges.front().dtype, flat.dtype);
    std::size_t first = 0;
    for (const ConstElements& range : ranges) {
      casts.add(range.view, flat.part(first, range.count()).view, range.count());
      first += range.count();
    }
    return casts.flush();
  });
}

void CudaKernels::unpack(ConstElements flat, std::span<const Elements> ranges) {
  check_element_ranges(ranges, flat.count());
  if (ranges.empty()) return;
  run("unpack", [&](const LaunchTarget& target) {
    auto casts = casts_on(target, flat.dtype, ranges.front().dtype);
    std::size_t first = 0;
    for (const Elements& range : ranges) {
      casts.add(flat.part(first, range.count()).view, range.view, range.count());
      first += range.count();
    }
    return casts.flush();
  });
}

void CudaKernels::fill(Elements destination, float value) {
  run("fill", [&](const LaunchTarget& target) {
    return launch_fill(array_of(destination), value, destination.count(), target);
  });
}

void CudaKernels::cast(ConstElements source, Elements destination) {
  check_cast(source, destination);
  if (source.dtype == destination.dtype) {
    if (source.view.data != destination.view.data) copy(source.view, destination.view);
    return;
  }
  run("cast", [&](const LaunchTarget& target) {
    return launch_cast(array_of(source), array_of(destination), source.count(), target);
  });
}

void CudaKernels::round_to(core::DType narrow, Elements values) {
  if (narrow == values.dtype) return;
  run("round", [&](const LaunchTarget& target) {
    return launch_round(format_of(narrow), array_of(values), values.count(), target);
  });
}

void CudaKernels::round_to_mx(core::DType element, ConstElements source, Elements destination) {
  check_round_to_mx(element, source, destination);
  run("round_to_mx", [&](const LaunchTarget& target) {
    return launch_round_to_mx(format_of(element), array_of(source), array_of(destination), source.count(),
                              target);
  });
}

void CudaKernels::pack_mx(core::DType element, ConstElements source, BufferView packed) {
  check_mx(element, source.count(), source.count(), packed.bytes);
  run("pack_mx", [&](const LaunchTarget& target) {
    return launch_pack_mx(array_of(source), {packed.data, format_of(element)}, source.count(), target);
  });
}

void CudaKernels::unpack_mx(core::DType element, ConstBufferView packed, std::size_t part,
                            Elements destination) {
  check_mx(element, destination.count(), part, packed.bytes);
  run("unpack_mx", [&](const LaunchTarget& target) {
    return launch_unpack_mx(array_of({packed, element}), part, array_of(destination), destination.count(),
                            target);
  });
}

void CudaKernels::scale(Elements values, float factor) {
  run("scale", [&](const LaunchTarget& target) {
    return launch_scale(array_of(values), factor, values.count(), target);
  });
}

void CudaKernels::accumulate(ConstElements source, Elements destination) {
  check_accumulate(source, destination);
  run("accumulate", [&](const LaunchTarget& target) {
    return launch_accumulate(array_of(source), array_of(destination), source.count(), target);
  });
}

void CudaKernels::tree_sum(const TreeSum& sum) {
  check_tree_sum(sum);
  if (sum.output.count() == 0) return;
  run("tree_sum", [&](const LaunchTarget& target) {
    if (sum.slots.size() <= TreeProgram::kSlots)
      return launch_tree_sum(program_of(sum), sum.output.count(), target);
    const auto passes = passes_of(static_cast<int>(sum.slots.size()), sum.steps, TreeProgram::kSlots);
    const std::size_t bytes = sum.output.count() * sizeof(float);
    const std::size_t partial_bytes = (bytes + kPartialAlignment - 1) / kPartialAlignment * kPartialAlignment;
    void* partials = nullptr;
    cudaError_t status = cudaMallocFromPoolAsync(&partials, (passes.size() - 1) * partial_bytes,
                                                 stream_.context().pool, target.stream);
    if (status != cudaSuccess) return status;
    auto slots = sum.slots;
    for (const TreePass& pass : passes) {
      TreeSum part{.slots = {}, .steps = pass.steps, .factor = 1, .output = {}};
      for (const int slot : pass.slots) part.slots.push_back(slots[static_cast<std::size_t>(slot)]);
      if (&pass == &passes.back()) {
        part.factor = sum.factor;
        part.output = sum.output;
      } else {
        const std::size_t first = (slots.size() - sum.slots.size()) * partial_bytes;
        part.output = {BufferView{static_cast<std::byte*>(partials) + first, bytes}, core::DType::f32};
        slots.push_back(part.output);
      }
      if (status == cudaSuccess) status = launch_tree_sum(program_of(part), part.output.count(), target);
    }
    const cudaError_t freed = cudaFreeAsync(partials, target.stream);
    return status == cudaSuccess ? freed : status;
  });
}

void CudaKernels::add_squares(ConstElements values, BufferView sum) {
  check_add_squares(sum);
  run("add_squares", [&](const LaunchTarget& target) {
    return launch_add_squares(array_of(values), values.count(), sum.as<std::int64_t>().data(), target);
  });
}

void CudaKernels::add_square_sums(ConstBufferView parts, BufferView into) {
  check_add_square_sums(parts, into);
  run("add_square_sums", [&](const LaunchTarget& target) {
    return launch_add_square_sums(parts.as<std::int64_t>().data(), parts.bytes / sizeof(core::ExactSquareSum),
                                  into.as<std::int64_t>().data(), target);
  });
}

void CudaKernels::raise_to_largest(ConstElements values, BufferView largest) {
  check_raise_to_largest(largest);
  run("raise_to_largest", [&](const LaunchTarget& target) {
    return launch_raise_to_largest(array_of(values), values.count(), largest.as<std::uint32_t>().data(),
                                   target);
  });
}

void CudaKernels::sgd_step(const SgdOptions& options, const ParameterStep& parameter, BufferView momentum) {
  check_sgd_step(options, parameter, momentum);
  run("sgd_step", [&](const LaunchTarget& target) {
    return launch_sgd_step(SgdFactors(options), arrays_of(parameter, momentum, {}),
                           parameter.gradient.count(), target);
  });
  if (parameter.cleared.bytes > 0) zero(parameter.cleared);
}

void CudaKernels::adam_step(const AdamOptions& options, std::int64_t step, const ParameterStep& parameter,
                            AdamMoments moments) {
  check_adam_step(step, parameter, moments);
  run("adam_step", [&](const LaunchTarget& target) {
    return launch_adam_step(AdamFactors(options, step), arrays_of(parameter, moments.first, moments.second),
                            parameter.gradient.count(), target);
  });
  if (parameter.cleared.bytes > 0) zero(parameter.cleared);
}

void CudaKernels::lion_step(const LionOptions& options, const ParameterStep& parameter, BufferView moment) {
  check_lion_step(parameter, moment);
  run("lion_step", [&](const LaunchTarget& target) {
    return launch_lion_step(LionFactors(options), arrays_of(parameter, moment, {}),
                            parameter.gradient.count(), target);
  });
  if (parameter.cleared.bytes > 0) zero(parameter.cleared);
}

void CudaKernels::muon_step(const MuonOptions& options, MatrixShape shape, const ParameterStep& parameter,
                            BufferView momentum, BufferView scratch) {
  check_muon_step(shape, parameter, momentum, scratch);
  run("muon_step", [&](const LaunchTarget& target) {
    return launch_muon_step(MuonFactors(options), shape, options.steps, arrays_of(parameter, momentum, {}),
                            MuonScratch(shape, scratch), target);
  });
  if (parameter.cleared.bytes > 0) zero(parameter.cleared);
}

}  // namespace troupe::gpu
