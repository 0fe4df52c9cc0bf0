#include "gpu/cuda/nvtx_profiler.hpp"

#include <nvtx3/nvToolsExt.h>

#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>

namespace troupe::gpu {
namespace {

class NvtxProfiler final : public core::Profiler {
 public:
  void begin(std::string_view subsystem, const std::string& name) override {
    nvtxEventAttributes_t range{};
    range.version = NVTX_VERSION;
    range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    range.messageType = NVTX_MESSAGE_TYPE_ASCII;
    range.message.ascii = name.c_str();
    (void)nvtxDomainRangePushEx(domain(subsystem), &range);
  }

  void end(std::string_view subsystem) override { (void)nvtxDomainRangePop(domain(subsystem)); }

 private:
  nvtxDomainHandle_t domain(std::string_view subsystem) {
    {
      std::shared_lock lock(mutex_);
      const auto found = domains_.find(subsystem);
      if (found != domains_.end()) return found->second;
    }
    std::unique_lock lock(mutex_);
    auto& handle = domains_[std::string(subsystem)];
    // Tools keep domains until the process ends, so they are never destroyed.
    if (handle == nullptr) handle = nvtxDomainCreateA(("troupe." + std::string(subsystem)).c_str());
    return handle;
  }

  std::shared_mutex mutex_;  // guards domains_
  std::map<std::string, nvtxDomainHandle_t, std::less<>> domains_;
};

}  // namespace

std::unique_ptr<core::Profiler> open_nvtx_profiler() {
  // Without a tool there are no domains.
  if (nvtxDomainCreateA("troupe") == nullptr) return nullptr;
  return std::make_unique<NvtxProfiler>();
}

}  // namespace troupe::gpu
