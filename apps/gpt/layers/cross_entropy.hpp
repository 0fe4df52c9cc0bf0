#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace troupe::apps::gpt {

/// The target of a row that is not learned: it has no loss and no gradient, and does not count in a mean.
inline constexpr std::int32_t kNoTarget = -1;

inline std::size_t learned_rows(std::span<const std::int32_t> targets) {
  return targets.size() - static_cast<std::size_t>(std::count(targets.begin(), targets.end(), kNoTarget));
}

/// What a loss and its gradients are divided by: `divisor`, or the number of learned rows.
inline std::size_t loss_divisor(std::span<const std::int32_t> targets, std::optional<std::size_t> divisor) {
  return divisor ? *divisor : std::max<std::size_t>(learned_rows(targets), 1);
}

}  // namespace troupe::apps::gpt
