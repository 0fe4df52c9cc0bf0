#pragma once

#include <cstdint>
#include <string>

#include "actors/session/context.hpp"
#include "core/options/options.hpp"
#include "core/program/unit_order.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// The order in which a trainer uses its units, while it is learned from one forward and one backward. Ranks
/// that keep the same part of the model compare each call before anything is gathered for it: members of a
/// group that gather different units would wait for each other, or mistake one for the other. On
/// Errc::mismatch the job ends.
class LearnedOrder {
 public:
  /// `units` is the trainer's number of units; `attempt` counts how often an order was learned. By all ranks
  /// alike.
  LearnedOrder(const SessionContext& in, int units, std::uint64_t attempt);

  /// Like OrderRecorder::uses(), plus Errc::mismatch.
  core::Result<void> uses(core::UnitIndex unit);
  core::Result<void> begin_backward();
  core::Result<core::DeclaredOrder> end();

 private:
  core::Result<void> agree(const std::string& call);

  const SessionContext& in_;
  core::OrderRecorder recorder_;
  core::Rank first_;  ///< the first of the ranks that compare
  std::uint64_t attempt_;
  std::uint64_t calls_ = 0;
};

}  // namespace troupe::actors
