#include "actors/session/exact_masters.hpp"

#include <algorithm>
#include <cstring>

#include "core/dtype.hpp"
#include "core/errors.hpp"
#include "gpu/kernels.hpp"

namespace troupe::actors {

using core::Result;

namespace {

constexpr std::size_t kPieceElements = std::size_t{1} << 20;

/// Elements of `master` that do not round to those of `values` become what these are.
void take_changed(gpu::BufferView master, gpu::BufferView values, core::DType dtype) {
  const auto exact = master.as<float>();
  std::vector<std::uint16_t> rounded(exact.size());
  std::vector<float> widened(exact.size());
  gpu::cast({master, core::DType::f32}, {gpu::view_of(std::span(rounded)), dtype});
  gpu::cast({values, dtype}, {gpu::view_of(std::span(widened)), core::DType::f32});
  const auto present = values.as<std::uint16_t>();
  for (std::size_t i = 0; i < exact.size(); ++i) {
    if (rounded[i] != present[i]) exact[i] = widened[i];
  }
}

}  // namespace

ExactMasters::ExactMasters(const SessionContext& context)
    : in_(context), copies_(context), written_(context.plan.specs.size(), false) {}

bool ExactMasters::empty() const {
  return std::none_of(written_.begin(), written_.end(), [](bool is_written) { return is_written; });
}

ExactMasters::Part ExactMasters::part_of(core::ParameterIndex index) const {
  const auto& spec = in_.plan.specs[index];
  const auto master = in_.data.tensors().state(StateKind::master, index);
  if (spec.dtype == core::DType::f32 || !spec.trainable) return {};
  return {master.range.start, master.memory, in_.data.tensors().state(StateKind::parameter, index).memory};
}

Result<void> ExactMasters::write(core::ParameterIndex index, std::int64_t first,
                                 std::span<const float> values) {
  // Values in blocks are the masters rounded once, and before the first step every rank rounds its bf16
  // values.
  if (in_.plan.specs[index].gather_dtype) return {};
  const auto part = part_of(index);
  if (part.master.bytes == 0) return {};
  written_[index] = true;
  const auto own = gpu::view_of(
      values.subspan(static_cast<std::size_t>(part.first - first), part.master.bytes / sizeof(float)));
  if (in_.world.device().is_host_memory()) {
    gpu::copy(own, part.master);
    return {};
  }
  constexpr auto kBytes = kPieceElements * sizeof(float);
  const auto staging = TRY(in_.world.device().allocate_staging(std::min(kBytes, own.bytes)));
  for (std::size_t at = 0; at < own.bytes; at += kBytes) {
    const auto size = std::min(kBytes, own.bytes - at);
    const auto piece = staging.view().subview(0, size);
    std::memcpy(piece.data, own.data + at, size);
    TRY(copies_.copy(piece, part.master.subview(at, size)));
  }
  return {};
}

Result<void> ExactMasters::adopt(core::ParameterIndex index) {
  const auto part = part_of(index);
  const auto dtype = in_.plan.specs[index].dtype;
  if (in_.world.device().is_host_memory()) {
    TRY(copies_.settle());
    take_changed(part.master, part.values, dtype);
    return {};
  }
  const auto elements = part.master.bytes / sizeof(float);
  const auto piece_elements = std::min(kPieceElements, elements);
  const auto masters = TRY(in_.world.device().allocate_staging(piece_elements * sizeof(float)));
  const auto values = TRY(in_.world.device().allocate_staging(piece_elements * core::size_of(dtype)));
  for (std::size_t at = 0; at < elements; at += piece_elements) {
    const auto count = std::min(piece_elements, elements - at);
    const auto master = part.master.subview(at * sizeof(float), count * sizeof(float));
    const auto staged = masters.view().subview(0, master.bytes);
    const auto present = values.view().subview(0, count * core::size_of(dtype));
    TRY(copies_.copy(master, staged));
    TRY(copies_.copy(part.values.subview(at * core::size_of(dtype), present.bytes), present));
    take_changed(staged, present, dtype);
    TRY(copies_.copy(staged, master));
  }
  return {};
}

}  // namespace troupe::actors
