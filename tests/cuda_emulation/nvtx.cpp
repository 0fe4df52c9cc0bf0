#include <nvtx3/nvToolsExt.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "tests/cuda_emulation/control.hpp"

struct nvtxDomainRegistration_st {
  std::string name;
};

namespace troupe::cuda_emulation {
namespace {

struct Tool {
  std::mutex mutex;  // guards all below
  bool is_attached = false;
  std::map<std::string, std::unique_ptr<nvtxDomainRegistration_st>> domains;
  std::map<std::pair<std::thread::id, nvtxDomainHandle_t>, std::vector<std::string>> open;
  std::vector<std::string> ranges;
};

Tool& tool() {
  static Tool instance;
  return instance;
}

}  // namespace

void attach_profiler() {
  std::lock_guard lock(tool().mutex);
  tool().is_attached = true;
}

std::vector<std::string> take_ranges() {
  std::lock_guard lock(tool().mutex);
  return std::exchange(tool().ranges, {});
}

void detach_profiler() {
  std::lock_guard lock(tool().mutex);
  tool().is_attached = false;
  for (const auto& [place, names] : tool().open) CHECK(names.empty(), "every range that began has ended");
  tool().ranges.clear();
}

}  // namespace troupe::cuda_emulation

using troupe::cuda_emulation::tool;

nvtxDomainHandle_t nvtxDomainCreateA(const char* name) {
  std::lock_guard lock(tool().mutex);
  if (!tool().is_attached) return nullptr;
  auto& domain = tool().domains[name];
  if (domain == nullptr)
    domain = std::make_unique<nvtxDomainRegistration_st>(nvtxDomainRegistration_st{name});
  return domain.get();
}

int nvtxDomainRangePushEx(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* range) {
  std::lock_guard lock(tool().mutex);
  CHECK(range->version == NVTX_VERSION && range->size == sizeof(*range), "a range says how large it is");
  CHECK(range->messageType == NVTX_MESSAGE_TYPE_ASCII, "a range has a name");
  auto& open = tool().open[{std::this_thread::get_id(), domain}];
  open.emplace_back(range->message.ascii);
  return static_cast<int>(open.size()) - 1;
}

int nvtxDomainRangePop(nvtxDomainHandle_t domain) {
  std::lock_guard lock(tool().mutex);
  auto& open = tool().open[{std::this_thread::get_id(), domain}];
  CHECK(!open.empty(), "a range ends in the thread and the domain in which it began");
  tool().ranges.push_back((domain == nullptr ? "" : domain->name) + ": " + open.back());
  open.pop_back();
  return static_cast<int>(open.size());
}
