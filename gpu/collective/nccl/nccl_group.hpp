#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpu/buffer.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/collective/nccl/communicator.hpp"
#include "gpu/collective/nccl/nccl_device.hpp"

namespace troupe::gpu {

/// What a member has posted so far. Members that agree have the same order; comparing them now and then
/// finds the member that went astray before it makes the others hang. Messages do not count.
struct NcclOrder {
  std::uint64_t operations = 0;
  std::uint64_t digest = 0;

  friend bool operator==(const NcclOrder&, const NcclOrder&) = default;
};

/// A member's group over NCCL. Operations run on the poster's streams, and their launches are over when
/// post() returns. Destroying it while operations run aborts them; otherwise the member leaves in peace.
class NcclGroup final : public Group {
 public:
  /// All members are there; operations may be posted. `communicator` is null in a group of one member.
  NcclGroup(NcclDevice& device, GroupOptions options, int index,
            std::unique_ptr<NcclCommunicator> communicator, Buffer words);
  ~NcclGroup() override;

  int index() const override;
  int size() const override;
  const std::string& name() const override;
  core::Result<std::shared_ptr<OperationStatus>> post(Operation operation, StreamView stream) override;
  core::Result<std::vector<std::shared_ptr<OperationStatus>>> post_together(
      std::vector<Posting> postings) override;
  /// Registers the memory with NCCL when all members can, since an operation of which some members' memory is
  /// registered and others' is not may do anything. Nothing without NcclOptions::register_memory.
  core::Result<bool> use_memory(std::span<const BufferView> memory) override;
  void abort(core::Error reason) override;

  /// Bytes of device memory, all zero, that a group of `size` members works with.
  static std::size_t word_bytes(int size);

  /// Runs one operation of each sort and waits for them.
  core::Result<void> warm_up(std::chrono::steady_clock::time_point give_up);

  NcclOrder order() const;

 private:
  class State;
  core::Result<void> register_memory(std::span<const BufferView> memory);
  /// The least of what the members give.
  core::Result<int> least_of_all(int own);
  /// Until the operations are over; an Error fails the group, or did.
  core::Result<void> wait(Stream& stream, const std::vector<std::shared_ptr<OperationStatus>>& statuses,
                          std::chrono::steady_clock::time_point give_up);
  // Shared by the group and those who look: the watching thread and the statuses, which hold it weakly.
  std::shared_ptr<State> state_;
};

}  // namespace troupe::gpu
