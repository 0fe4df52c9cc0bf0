#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include "core/hash.hpp"
#include "core/random.hpp"

namespace troupe::actors {

/// Random numbers of one component for one purpose. They depend on (seed, component, purpose) and on how many
/// were drawn here, so an additional draw in one component changes nothing in the others.
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::string_view component, std::string_view purpose)
      : random_(core::hash64(component, seed), purpose) {}

  /// In [0, bound), for bound > 0.
  std::uint32_t below(std::uint32_t bound) { return random_.below(bound, drawn_++); }
  std::uint32_t bits() { return random_.bits(drawn_++); }
  /// In [0, 1).
  float uniform() { return random_.uniform(drawn_++); }
  bool happens(double probability) { return uniform() < probability; }
  /// In [0, limit], in steps of limit / 2^24.
  std::chrono::nanoseconds up_to(std::chrono::nanoseconds limit) {
    return std::chrono::nanoseconds(
        static_cast<std::int64_t>(static_cast<double>(limit.count()) * uniform()));
  }

  std::uint64_t drawn() const { return drawn_; }

 private:
  core::CounterRandom random_;
  std::uint64_t drawn_ = 0;
};

}  // namespace troupe::actors
