#include "apps/gpt/stage/stage_memory.hpp"

#include <algorithm>
#include <chrono>

#include "core/errors.hpp"
#include "gpu/kernels.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

constexpr auto kStageDeadline = std::chrono::minutes(10);

}  // namespace

void StageMemory::copy(gpu::ConstBufferView source, gpu::BufferView destination) const {
  compute_ == nullptr ? gpu::copy(source, destination) : gpu::copy(source, destination, compute_);
}

void StageMemory::zero(gpu::BufferView destination) const {
  compute_ == nullptr ? gpu::zero(destination) : gpu::zero(destination, compute_);
}

void StageMemory::add(gpu::ConstBufferView source, gpu::BufferView destination) const {
  const gpu::ConstElements from(source, core::DType::f32);
  const gpu::Elements to{destination, core::DType::f32};
  compute_ == nullptr ? gpu::accumulate(from, to) : gpu::accumulate(from, to, compute_);
}

Result<void> StageMemory::settle() const {
  return compute_ == nullptr ? Result<void>{} : compute_->synchronize(kStageDeadline);
}

Result<void> StageMemory::read(gpu::ConstBufferView source, std::span<std::byte> destination) const {
  if (compute_ == nullptr) {
    gpu::copy(source, gpu::view_of(destination));
    return {};
  }
  const auto staging = TRY(device_->allocate_staging(source.bytes));
  gpu::copy(source, staging.view(), compute_);
  TRY(settle());
  std::copy_n(staging.view().data, source.bytes, destination.data());
  return {};
}

Result<void> StageMemory::write(std::span<const std::byte> source, gpu::BufferView destination) const {
  if (compute_ == nullptr) {
    gpu::copy(gpu::view_of(source), destination);
    return {};
  }
  const auto staging = TRY(device_->allocate_staging(source.size()));
  std::copy(source.begin(), source.end(), staging.view().data);
  gpu::copy(staging.view(), destination, compute_);
  return settle();
}

}  // namespace troupe::apps::gpt
