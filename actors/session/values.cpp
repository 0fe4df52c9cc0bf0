#include "actors/session/values.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "core/dtype.hpp"
#include "core/errors.hpp"
#include "gpu/kernels.hpp"
#include "gpu/order/task_order.hpp"

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

Values::Values(const SessionContext& context)
    : in_(context), copies_(context), has_exact_master_(context.plan.specs.size(), false) {}

Result<void> Values::adopt() {
  if (adopted_) return {};
  const auto& exact = has_exact_master_;
  if (std::find(exact.begin(), exact.end(), true) == exact.end()) {
    in_.data.updates().adopt_all();
  } else {
    for (const auto index : in_.plan.specs.indices()) TRY(adopt(index));
  }
  adopted_ = true;
  return in_.data.updates().rounds_parameters() ? settle() : Result<void>{};
}

Result<void> Values::adopt(core::ParameterIndex index) {
  if (has_exact_master_[index]) return adopt_master(index);
  in_.data.updates().adopt(index);
  return {};
}

Result<void> Values::settle() {
  in_.data.updates().round_parameters();
  return in_.inbox.wait_gathered(deadline());
}

Result<void> Values::write(core::ParameterIndex index, const Visit& fill) {
  if (!adopted_) return write_memory(index, fill);
  TRY(settle());
  TRY(write_memory(index, fill));
  TRY(adopt(index));
  return settle();
}

Result<void> Values::write_memory(core::ParameterIndex index, const Visit& fill) {
  const auto resting = in_.data.tensors().resting_parameter(index);
  if (resting.range.size() == 0) return {};
  const auto dtype = in_.plan.specs[index].dtype;
  auto& device = in_.world.device();
  if (device.is_host_memory()) gpu::declare(device, "first values", {}, {resting.memory});
  if (device.is_host_memory() && dtype == core::DType::f32) {
    fill(resting.range.start, resting.memory.as<float>());
    return {};
  }
  std::vector<float> values(static_cast<std::size_t>(resting.range.size()));
  fill(resting.range.start, values);
  TRY(write_master(index, resting.range.start, values));
  if (device.is_host_memory()) {
    gpu::cast({gpu::view_of(std::span<const float>(values)), core::DType::f32}, {resting.memory, dtype});
    return {};
  }
  const auto staging = TRY(device.allocate_staging(resting.memory.bytes));
  gpu::cast({gpu::view_of(std::span<const float>(values)), core::DType::f32}, {staging.view(), dtype});
  const auto stream = TRY(device.create_stream({"first values", 0}));
  gpu::copy(staging.view(), resting.memory, stream.get());
  return stream->synchronize(deadline());
}

Result<void> Values::write_master(core::ParameterIndex index, std::int64_t first,
                                  std::span<const float> values) {
  const auto& spec = in_.plan.specs[index];
  // Values in blocks are the masters rounded once, and before the first step every rank rounds its bf16
  // values.
  if (spec.gather_dtype) return {};
  const auto [range, master] = part_of(StateKind::master, index);
  if (spec.dtype == core::DType::f32 || !spec.trainable || master.bytes == 0) return {};
  has_exact_master_[index] = true;
  const auto own = gpu::view_of(
      values.subspan(static_cast<std::size_t>(range.start - first), master.bytes / sizeof(float)));
  if (in_.world.device().is_host_memory()) {
    gpu::copy(own, master);
    return {};
  }
  constexpr auto kBytes = kPieceElements * sizeof(float);
  const auto staging = TRY(in_.world.device().allocate_staging(std::min(kBytes, own.bytes)));
  for (std::size_t at = 0; at < own.bytes; at += kBytes) {
    const auto size = std::min(kBytes, own.bytes - at);
    const auto piece = staging.view().subview(0, size);
    std::memcpy(piece.data, own.data + at, size);
    TRY(copies_.copy(piece, master.subview(at, size)));
  }
  return {};
}

Result<void> Values::adopt_master(core::ParameterIndex index) {
  const auto whole = part_of(StateKind::master, index).memory;
  const auto present_values = part_of(StateKind::parameter, index).memory;
  const auto dtype = in_.plan.specs[index].dtype;
  if (in_.world.device().is_host_memory()) {
    TRY(copies_.settle());
    take_changed(whole, present_values, dtype);
    return {};
  }
  const auto elements = whole.bytes / sizeof(float);
  const auto piece_elements = std::min(kPieceElements, elements);
  const auto masters = TRY(in_.world.device().allocate_staging(piece_elements * sizeof(float)));
  const auto values = TRY(in_.world.device().allocate_staging(piece_elements * core::size_of(dtype)));
  for (std::size_t at = 0; at < elements; at += piece_elements) {
    const auto count = std::min(piece_elements, elements - at);
    const auto master = whole.subview(at * sizeof(float), count * sizeof(float));
    const auto staged = masters.view().subview(0, master.bytes);
    const auto present = values.view().subview(0, count * core::size_of(dtype));
    TRY(copies_.copy(master, staged));
    TRY(copies_.copy(present_values.subview(at * core::size_of(dtype), present.bytes), present));
    take_changed(staged, present, dtype);
    TRY(copies_.copy(staged, master));
  }
  return {};
}

Result<RankTensors::Part> Values::state(core::ParameterIndex index, std::string_view name) const {
  const auto& states = in_.plan.buffers[in_.plan.parameters[index].buffer].states;
  const auto found = std::find(states.begin(), states.end(), name);
  if (found == states.end())
    return core::fail(core::Errc::invalid_argument, "the optimizer keeps no '{}' of {}, but: {}", name,
                      in_.plan.specs[index].name, fmt::join(states, ", "));
  const auto kind = found == states.begin() ? StateKind::first_state : StateKind::second_state;
  return part_of(kind, index);
}

Result<void> Values::visit(const RankTensors::Part& state, bool writes, const Visit& visit) {
  if (state.range.size() == 0) return {};
  auto& device = in_.world.device();
  if (device.is_host_memory()) {
    gpu::declare(device, "optimizer's state", {state.memory}, {state.memory});
    visit(state.range.start, state.memory.as<float>());
    return {};
  }
  const auto staging = TRY(device.allocate_staging(state.memory.bytes));
  if (!writes) TRY(copies_.copy(state.memory, staging.view()));
  visit(state.range.start, staging.view().as<float>());
  return writes ? copies_.copy(staging.view(), state.memory) : Result<void>{};
}

}  // namespace troupe::actors
