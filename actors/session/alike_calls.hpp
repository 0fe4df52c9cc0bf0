#pragma once

#include <cstddef>

#include "actors/session/context.hpp"
#include "messages/envelope.hpp"

namespace troupe::actors {

/// How often the trainer has made each of the calls that all ranks make alike, of which the Coordinator is
/// told.
class AlikeCalls {
 public:
  /// The context must outlive it.
  explicit AlikeCalls(const SessionContext& context) : in_(context) {}

  const messages::CallCounts& counts() const { return counts_; }
  void made(messages::Call call) {
    count_of(call) += 1;
    if (call != messages::Call::begin_step) in_.tell(messages::TrainerCalls{in_.rank(), counts_});
  }

  /// Until the next one, what the trainer waits for comes only after every rank has made this call as often
  /// as this one has.
  void expect(messages::Call call) {
    in_.inbox.expect(messages::TrainerCalls{in_.rank(), counts_, true, call, count_of(call)},
                     [&in = in_](const messages::TrainerCalls& waits) { in.tell(waits); });
  }
  void expect_nothing() { in_.inbox.expect({}); }
  /// What `wait` returns, which is a part of this call.
  template <class Wait>
  auto within(messages::Call call, const Wait& wait) {
    expect(call);
    auto result = wait();
    expect_nothing();
    return result;
  }
  /// The same for a restore, which is recorded.
  template <class Run>
  auto within_restore(const Run& run) {
    made(messages::Call::restore);
    in_.enter(gpu::FlightPhase::restoring);
    auto result = within(messages::Call::restore, run);
    in_.enter(gpu::FlightPhase::between_steps);
    return result;
  }
  /// What `wait` returns, which comes before this call counts.
  template <class Wait>
  auto before(messages::Call call, const Wait& wait) {
    count_of(call) += 1;
    auto result = wait();
    count_of(call) -= 1;
    return result;
  }

 private:
  std::uint64_t& count_of(messages::Call call) { return counts_[static_cast<std::size_t>(call)]; }

  const SessionContext& in_;
  messages::CallCounts counts_ = messages::CallCounts(messages::kCallNames.size(), 0);
};

}  // namespace troupe::actors
