#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::core {

/// An event on a track (an actor, a stream, the trainer): a span, an instant or a counter sample. Times are
/// nanoseconds of CLOCK_MONOTONIC (shared by all processes of a host), or virtual ones in simulation.
struct TraceEvent {
  enum class Kind : std::uint8_t { span, instant, counter };
  Kind kind = Kind::span;
  std::string track;  ///< for example "communication", "GradientBucket 3"
  std::string name;   ///< for example "reduce_scatter bucket 3"
  std::chrono::nanoseconds begin{};
  std::chrono::nanoseconds end{};  ///< spans only
  double value = 0;                ///< counters only
  /// Flows join spans across tracks: gradient -> bucket -> launch -> optimizer share one id. 0 means none.
  std::uint64_t flow = 0;
};

}  // namespace troupe::core
