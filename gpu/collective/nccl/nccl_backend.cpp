#include "gpu/collective/nccl/nccl_backend.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <string>
#include <utility>

#include "core/errors.hpp"
#include "gpu/collective/job_failure.hpp"
#include "gpu/collective/nccl/communicator.hpp"
#include "gpu/collective/nccl/nccl_group.hpp"
#include "gpu/collective/operations.hpp"

namespace troupe::gpu {
namespace {

using core::Errc;
using Clock = std::chrono::steady_clock;

std::string id_text(const NcclUniqueId& id) {
  std::string text;
  for (const char byte : id.bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

std::optional<NcclUniqueId> id_of(std::string_view text) {
  NcclUniqueId id;
  if (text.size() != 2 * sizeof id.bytes) return std::nullopt;
  for (std::size_t i = 0; i < sizeof id.bytes; ++i) {
    unsigned char byte = 0;
    const char* const begin = text.data() + 2 * i;
    if (std::from_chars(begin, begin + 2, byte, 16).ptr != begin + 2) return std::nullopt;
    id.bytes[i] = static_cast<char>(byte);
  }
  return id;
}

std::string key_of(const GroupOptions& options) {
  return fmt::format("{}/{}/{}/nccl", options.job, options.epoch.value, options.name);
}

}  // namespace

NcclBackend::NcclBackend(std::shared_ptr<const NcclLibrary> library, Device& device, NcclDevicePort port,
                         Rendezvous& rendezvous, NcclOptions options)
    : rendezvous_(rendezvous), device_(std::move(library), device, std::move(port), std::move(options)) {}

core::Result<Buffer> NcclBackend::allocate(Device& device, std::size_t bytes) {
  if (bytes == 0 || !device_.registers_memory() || &device != &device_.device()) {
    return device.allocate(bytes);
  }
  auto buffer = device_.memories().allocate(bytes);
  if (buffer) return buffer;
  device_.warn(fmt::format("{}; the device's own memory takes its place, and no memory is registered",
                           buffer.error().message));
  return device.allocate(bytes);
}

void NcclBackend::expect(const std::string& group, std::vector<ExpectedOperation> operations) {
  std::lock_guard lock(expected_mutex_);
  expected_[group] = std::move(operations);
}

core::Result<std::unique_ptr<Group>> NcclBackend::create_group(GroupOptions options) {
  std::vector<ExpectedOperation> expected;
  {
    std::lock_guard lock(expected_mutex_);
    if (auto known = expected_.extract(options.name)) expected = std::move(known.mapped());
  }
  const int index = TRY(index_of_self(options));
  const int size = static_cast<int>(options.members.size());
  // Clocks overflow when nanoseconds::max() is added to now.
  const auto limit = std::min<std::chrono::nanoseconds>(options.deadline, std::chrono::hours(24 * 365));
  const auto give_up = Clock::now() + limit;
  const auto current = TRY(device_.port().make_current());
  Buffer words = TRY(device_.device().allocate(NcclGroup::word_bytes()));
  if (size == 1) {
    return std::make_unique<NcclGroup>(device_, std::move(options), index, nullptr, std::move(words));
  }
  const NcclUniqueId id = TRY(agree_on_id(options, index));
  NcclCaller caller{options.name, options.epoch, options.self, device_.port().name};
  JobFailure job(rendezvous_, key_of(options));
  auto communicator = NcclCommunicator::join(
      device_.library(), device_.disposal(), std::move(caller), {index, size}, id, device_.options(),
      {.give_up = give_up, .limit = limit, .is_over = [&job] { return job.look().has_value(); }},
      device_.launches());
  // NCCL says only that it was not waited for.
  if (const auto over = job.look(); !communicator && over) return tl::unexpected(*over);
  auto group = std::make_unique<NcclGroup>(device_, std::move(options), index, TRY(std::move(communicator)),
                                           std::move(words));
  if (device_.options().warm_up) TRY(group->warm_up(expected, give_up));
  group->record();
  return group;
}

core::Result<NcclUniqueId> NcclBackend::agree_on_id(const GroupOptions& options, int index) {
  const std::string key = key_of(options);
  std::string own = nccl_version_text(capabilities().version);
  if (device_.registers_memory()) own += " with registered memory";
  if (index == 0) {
    NcclUniqueId id;
    if (const NcclStatus status = device_.library()->api.get_unique_id(&id); status != NcclStatus::success) {
      const NcclCaller caller{options.name, options.epoch, options.self, device_.port().name};
      const char* const detail = device_.library()->api.get_last_error(nullptr);
      return tl::unexpected(nccl_error(status, "ncclGetUniqueId", caller, detail ? detail : ""));
    }
    TRY(rendezvous_.set(key, own + " " + id_text(id)));
    return id;
  }
  const std::string found = TRY(rendezvous_.get(key, options.deadline));
  const std::size_t space = found.rfind(' ');
  const auto id =
      id_of(space == std::string::npos ? std::string_view() : std::string_view(found).substr(space + 1));
  const std::string version = found.substr(0, space);
  if (id && version != own) {
    return core::fail(
        Errc::mismatch,
        "group '{}': rank {} has NCCL {}, but rank {} has {}; install one version on all hosts, and "
        "give all ranks the same options",
        options.name, options.self.value, own, options.members.front().value, version);
  }
  if (!id) {
    return core::fail(
        Errc::corrupt,
        "group '{}': expected a version and a unique id of NCCL under '{}', found '{}'; another "
        "program uses the same rendezvous",
        options.name, key, found);
  }
  return *id;
}

bool NcclBackend::wait_for_disposals() {
  return device_.disposal().wait_for_all();
}

}  // namespace troupe::gpu
