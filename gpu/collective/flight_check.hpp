#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/hash.hpp"
#include "gpu/collective/flight_record.hpp"

namespace troupe::gpu {

constexpr std::uint64_t word_of(std::uint64_t number, FlightState state) {
  return number << 8 | static_cast<std::uint64_t>(state);
}
constexpr FlightState state_in(std::uint64_t word) {
  return static_cast<FlightState>(word & 0xff);
}
constexpr std::uint64_t number_in(std::uint64_t word) {
  return word >> 8;
}

/// FlightEntry::check.
inline std::uint64_t check_of(const FlightEntry& entry, std::uint64_t number) {
  const auto* const begin = reinterpret_cast<const std::byte*>(&entry.sequence);
  const auto* const end = reinterpret_cast<const std::byte*>(&entry.posted_ns + 1);
  return core::hash64(std::span(begin, end), number);
}

}  // namespace troupe::gpu
