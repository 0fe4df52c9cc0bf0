#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.hpp"
#include "gpu/collective/expected.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/collective/nccl/library.hpp"
#include "gpu/collective/nccl/nccl_device.hpp"
#include "gpu/collective/nccl/options.hpp"

namespace troupe::gpu {

/// Collectives of GPUs, on one host or many, through NCCL. One per device; NCCL's abort is designed for at
/// most one device per process. Differences from the other back-ends:
///
/// - the arithmetic is NCCL's, see ReduceOp;
/// - disagreement of members is not detected: they hang until their deadlines. NcclGroup::order() compares;
/// - all members must post the operations of all groups of a device in one order, as their kernels wait for
///   each other on the device. Threads that post concurrently are admitted one by one, in no defined order;
/// - messages of one group run one at a time, in posting order, unless they are posted together;
/// - when a deadline passes, the missing member is not known. A dead peer on another host shows as
///   Errc::peer_lost, one on this host only by deadlines or by other means of detection;
/// - a group of one member has no communicator and copies.
///
/// post() returns when the operation is on its stream, tens of microseconds later. It waits for peers, up to
/// the operation's deadline, only where NCCL must still connect to them; create_group() connects those that
/// what is expected of the group needs, with NcclOptions::warm_up. Groups are best created while nothing else
/// runs on the device.
class NcclBackend final : public CollectiveBackend, public ConnectsAhead {
 public:
  /// `rendezvous` and `device` must outlive the back-end, and the back-end must outlive the groups.
  NcclBackend(std::shared_ptr<const NcclLibrary> library, Device& device, NcclDevicePort port,
              Rendezvous& rendezvous, NcclOptions options = {});

  std::string_view name() const override { return "nccl"; }
  /// From ncclMemAlloc with NcclOptions::register_memory, otherwise from the device.
  core::Result<Buffer> allocate(Device& device, std::size_t bytes) override;
  bool runs_in_launch_order() const override { return true; }
  /// The first member creates a unique id for each group and epoch; the others get it through the rendezvous.
  /// Errc::mismatch if members have different versions of NCCL, or not all register memory.
  core::Result<std::unique_ptr<Group>> create_group(GroupOptions options) override;

  void expect(const std::string& group, std::vector<ExpectedOperation> operations) override;

  const NcclCapabilities& capabilities() const { return device_.library()->capabilities; }
  /// Waits until all abandoned communicators are disposed of; false if some are stuck.
  bool wait_for_disposals();

 private:
  core::Result<NcclUniqueId> agree_on_id(const GroupOptions& options, int index);

  Rendezvous& rendezvous_;
  NcclDevice device_;
  std::mutex expected_mutex_;                                       // guards expected_
  std::map<std::string, std::vector<ExpectedOperation>> expected_;  ///< of groups to come
};

}  // namespace troupe::gpu
