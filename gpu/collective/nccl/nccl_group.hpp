#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpu/buffer.hpp"
#include "gpu/collective/expected.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/collective/nccl/communicator.hpp"
#include "gpu/collective/nccl/nccl_device.hpp"

namespace troupe::gpu {

/// What a member has posted so far. Members that agree have the same order; comparing it occasionally finds a
/// deviating member before it makes the others hang. Messages do not count.
struct NcclOrder {
  std::uint64_t operations = 0;
  std::uint64_t digest = 0;

  friend bool operator==(const NcclOrder&, const NcclOrder&) = default;
};

/// A member's group over NCCL. Operations run on the poster's streams, and are launched when post() returns.
/// Destroying the group while operations run aborts them; otherwise the member leaves cleanly.
class NcclGroup final : public Group {
 public:
  /// All members have joined; operations may be posted. `communicator` is null in a group of one member.
  NcclGroup(NcclDevice& device, GroupOptions options, int index,
            std::unique_ptr<NcclCommunicator> communicator, Buffer words);
  ~NcclGroup() override;

  int index() const override;
  int size() const override;
  const std::string& name() const override;
  core::Result<std::shared_ptr<OperationStatus>> post(Operation operation, StreamView stream) override;
  core::Result<std::vector<std::shared_ptr<OperationStatus>>> post_together(
      std::vector<Posting> postings) override;
  /// Registers the memory with NCCL if all members can, since the behaviour of an operation is undefined if
  /// only some members' memory is registered. Does nothing without NcclOptions::register_memory.
  core::Result<bool> use_memory(std::span<const BufferView> memory) override;
  void abort(core::Error reason) override;

  /// Bytes of device memory, all zero, that a group needs.
  static std::size_t word_bytes();

  /// Runs a barrier and what is expected of the group, with parts of limited size, and waits for them.
  core::Result<void> warm_up(const std::vector<ExpectedOperation>& expected,
                             std::chrono::steady_clock::time_point give_up);

  /// What is posted from now on is recorded (GroupOptions::recorder).
  void record();

  NcclOrder order() const;

 private:
  class State;
  core::Result<void> register_memory(std::span<const BufferView> memory);
  /// The minimum of all members' values.
  core::Result<int> least_of_all(int own);
  /// Waits until the operations have ended; an Error fails the group, or already has.
  core::Result<void> wait(Stream& stream, const std::vector<std::shared_ptr<OperationStatus>>& statuses,
                          std::chrono::steady_clock::time_point give_up);
  // Shared by the group and its observers: the watching thread and the statuses, which hold weak references.
  std::shared_ptr<State> state_;
};

}  // namespace troupe::gpu
