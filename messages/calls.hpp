#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.hpp"

namespace troupe::messages {

/// The calls of a trainer that all ranks make alike.
enum class Call : std::uint8_t { begin_step, save, save_local, restore, begin_evaluation, leave };
inline constexpr std::array<std::string_view, 6> kCallNames{
    "begin_step()", "save()", "save_local()", "restore()", "begin_evaluation()", "leave()"};
constexpr std::string_view name_of(Call call) noexcept {
  return kCallNames[static_cast<std::size_t>(call)];
}

/// How often a trainer has made each Call, in their order.
using CallCounts = std::vector<std::uint64_t>;

/// Trainer to Coordinator: what it has called, after every call but begin_step(). With `waits` it has waited
/// for a while, and cannot go on before every rank has made the call `needs` this many times.
struct TrainerCalls {
  core::Rank rank{};
  CallCounts calls;
  bool waits = false;
  Call needs{};
  std::uint64_t count = 0;

  friend bool operator==(const TrainerCalls&, const TrainerCalls&) = default;
};

/// Coordinator to trainers, for people: to all which ranks wait for which others to make a call; to rank 0
/// which rank is slow.
struct WaitNote {
  std::string text;

  friend bool operator==(const WaitNote&, const WaitNote&) = default;
};

}  // namespace troupe::messages
