#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/planes/experts/plane.hpp"
#include "actors/session/context.hpp"
#include "actors/session/sequencer.hpp"
#include "core/result.hpp"
#include "gpu/stream.hpp"

namespace troupe::actors {

/// Carries counts and rows over the session's group "ep", through its Sequencer. Where the host does not
/// reach the device's memory, counts go through a small buffer there, for which the host waits; rows stay in
/// it.
class RowExchange final : public RowCarrier {
 public:
  /// Everything given must outlive it.
  RowExchange(const SessionContext& context, Sequencer& sequencer)
      : in_(context), sequencer_(sequencer), group_(sequencer.find("ep")) {}

  core::Result<std::vector<std::vector<std::int64_t>>> gather(const std::vector<std::int64_t>& own,
                                                              const std::string& what) override;
  core::Result<void> begin(gpu::ConstBufferView input, gpu::BufferView output, const core::RowMove& move,
                           std::size_t row_bytes, const std::string& what) override;
  core::Result<void> wait() override;

 private:
  core::Result<void> gather_on_device(const std::vector<std::int64_t>& own, std::vector<std::int64_t>& all);
  core::Result<void> gather(gpu::ConstBufferView own, gpu::BufferView all, std::size_t counts);
  core::Result<void> copy_here(gpu::ConstBufferView input, gpu::BufferView output);
  core::Result<gpu::StreamView> stream();
  core::Result<void> settle();
  core::Result<void> unless_failed() const;

  const SessionContext& in_;
  Sequencer& sequencer_;
  TrainerGroup* group_;            ///< null: all experts are here
  TrainerGroup::Posted posted_{};  ///< the last exchange of rows
  gpu::Buffer counts_, staging_;   ///< of a device that the host does not reach
  gpu::Event settled_;             ///< as above
  gpu::Stream own_;                ///< as above, where the trainer has no compute stream
};

}  // namespace troupe::actors
