#include "actors/planes/checkpoint/upload.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/convert.hpp"
#include "core/disregard.hpp"
#include "core/errors.hpp"
#include "gpu/kernels.hpp"

namespace troupe::actors {

namespace {

/// Larger ones are not faster: reading half of it already takes longer than everything before and after.
constexpr std::uint64_t kUsualBytes = std::uint64_t{8} << 20;

}  // namespace

Upload::Upload(gpu::Buffer staging, gpu::Stream stream, std::chrono::nanoseconds deadline)
    : deadline_(deadline), staging_(std::move(staging)), stream_(std::move(stream)) {
  const auto half = staging_.bytes() / 2;
  window_ = {staging_.view().data, half};
  scratch_ = {staging_.view().data + half, half};
}

core::Result<void> Upload::put(core::DType from_dtype, const std::byte* from, core::DType to_dtype,
                               std::byte* to, std::size_t count) {
  const auto from_width = core::size_of(from_dtype);
  const auto to_width = core::size_of(to_dtype);
  const bool is_in_window = from >= window_.data() && from < window_.data() + window_.size();
  if (is_in_window && from_dtype == to_dtype) {
    gpu::copy({from, count * from_width}, {to, count * to_width}, stream_.get());
    return {};
  }
  while (count > 0) {
    const auto place = scratch_.subspan(scratch_used_);
    const auto now = std::min(count, place.size() / to_width);
    if (now == 0) {
      TRY(settle());
      continue;
    }
    core::convert_elements(from_dtype, from, to_dtype, place.data(), now);
    gpu::copy({place.data(), now * to_width}, {to, now * to_width}, stream_.get());
    scratch_used_ += now * to_width;
    from += now * from_width;
    to += now * to_width;
    count -= now;
  }
  return {};
}

core::Result<std::span<const std::byte>> Upload::fetch(std::span<const std::byte> from) {
  CHECK(from.size() <= window_.size(), "what is fetched at once fits the window");
  gpu::copy({from.data(), from.size()}, {window_.data(), from.size()}, stream_.get());
  TRY(settle());
  return window_.first(from.size());
}

core::Result<void> Upload::settle() {
  TRY(stream_->synchronize(deadline_));
  scratch_used_ = 0;
  return {};
}

core::Result<std::unique_ptr<UploadPool>> UploadPool::create(gpu::Device& device, std::uint64_t budget_bytes,
                                                             std::size_t threads,
                                                             std::chrono::nanoseconds deadline) {
  CHECK(budget_bytes >= kLeastBytes, "LoadOptions::check() refuses less");
  std::unique_ptr<UploadPool> pool(new UploadPool);
  const auto count =
      std::clamp<std::uint64_t>(budget_bytes / kUsualBytes, 1, std::max<std::size_t>(threads, 1));
  const auto bytes = std::min(budget_bytes / count, kUsualBytes) / kLeastBytes * kLeastBytes;
  for (std::uint64_t i = 0; i < count; ++i) {
    auto staging = TRY(device.allocate_staging(bytes));
    auto stream = TRY(device.create_stream({"restore", 0}));
    pool->uploads_.push_back(std::make_unique<Upload>(std::move(staging), std::move(stream), deadline));
    pool->free_.push_back(pool->uploads_.back().get());
  }
  return pool;
}

UploadPool::Lease UploadPool::take() {
  std::unique_lock lock(mutex_);
  freed_.wait(lock, [this] { return !free_.empty(); });
  Lease lease(free_.back(), [this](Upload* upload) { give_back(upload); });
  free_.pop_back();
  return lease;
}

void UploadPool::give_back(Upload* upload) {
  core::disregard(upload->settle(),
                  "only a user that gave up leaves copies on their way, and asks for them no more");
  {
    std::lock_guard lock(mutex_);
    free_.push_back(upload);
  }
  freed_.notify_one();
}

core::Result<void> clear(std::span<std::byte> memory, UploadPool* uploads) {
  if (uploads == nullptr) {
    std::memset(memory.data(), 0, memory.size());
    return {};
  }
  const auto upload = uploads->take();
  std::memset(upload->window().data(), 0, upload->window().size());
  while (!memory.empty()) {
    const auto part = memory.first(std::min(memory.size(), upload->window().size()));
    TRY(upload->put(core::DType::u8, upload->window().data(), core::DType::u8, part.data(), part.size()));
    memory = memory.subspan(part.size());
  }
  return upload->settle();
}

}  // namespace troupe::actors
