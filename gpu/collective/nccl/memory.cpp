#include "gpu/collective/nccl/memory.hpp"

#include <chrono>
#include <utility>

#include "core/errors.hpp"
#include "gpu/collective/nccl/errors.hpp"
#include "gpu/kernels.hpp"

namespace troupe::gpu {
namespace {

/// Time for an empty stream to write zeros.
constexpr std::chrono::seconds kZeroing{60};

bool contains(BufferView range, BufferView view) {
  return view.data >= range.data && view.data + view.bytes <= range.data + range.bytes;
}

}  // namespace

NcclMemory::NcclMemory(std::shared_ptr<const NcclLibrary> library, NcclDevicePort port, BufferView view)
    : library_(std::move(library)), port_(std::move(port)), view_(view) {}

NcclMemory::~NcclMemory() {
  // A device that is out of order is no reason to keep the range.
  const auto current = port_.make_current();
  (void)library_->api.mem_free(view_.data);
}

NcclMemories::NcclMemories(std::shared_ptr<const NcclLibrary> library, Device& device, NcclDevicePort port)
    : library_(std::move(library)), device_(device), port_(std::move(port)) {}

core::Result<Buffer> NcclMemories::allocate(std::size_t bytes) {
  const auto current = TRY(port_.make_current());
  void* memory = nullptr;
  if (const NcclStatus status = library_->api.mem_alloc(&memory, bytes); status != NcclStatus::success) {
    const char* const detail = library_->api.get_last_error(nullptr);
    return core::fail(core::Errc::unavailable, "{}: ncclMemAlloc of {} bytes ended in {}: {}", port_.name,
                      bytes, name_of(status), detail != nullptr ? detail : "NCCL gives no reason");
  }
  auto range =
      std::make_shared<const NcclMemory>(library_, port_, BufferView{static_cast<std::byte*>(memory), bytes});
  // After the range: destroying a stream waits for its work.
  const Stream stream = TRY(device_.create_stream({.name = "nccl memory"}));
  zero(range->view(), stream.get());
  TRY(stream->synchronize(kZeroing));
  {
    std::lock_guard lock(mutex_);
    std::erase_if(ranges_, [](const auto& each) { return each.expired(); });
    ranges_.push_back(range);
  }
  const BufferView view = range->view();
  return Buffer(view, [range = std::move(range)](BufferView) {});
}

std::shared_ptr<const NcclMemory> NcclMemories::find(BufferView view) const {
  std::lock_guard lock(mutex_);
  for (const auto& each : ranges_) {
    if (auto range = each.lock(); range && contains(range->view(), view)) return range;
  }
  return nullptr;
}

void deregister_all(const NcclApi& api, NcclComm comm, NcclRegistrations& registrations) {
  for (const NcclRegistration& each : registrations) (void)api.comm_deregister(comm, each.handle);
  registrations.clear();
}

}  // namespace troupe::gpu
