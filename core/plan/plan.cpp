#include "core/plan/plan.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "core/errors.hpp"
#include "core/hash.hpp"

namespace troupe::core {
namespace {

constexpr std::array<std::string_view, 4> kKindNames{"all_reduce", "reduce_scatter", "all_gather",
                                                     "all_to_all"};
constexpr std::array<std::string_view, 6> kPurposeNames{
    "exchange_gradients", "reduce_gradients", "reduce_across_instances",
    "gather_gradients",   "verdict",          "gather_parameters"};

std::string line_of(const PlanEntry& entry) {
  const auto& parts = entry.elements;
  const bool even = std::equal(parts.begin() + 1, parts.end(), parts.begin());
  const auto bucket = entry.bucket ? fmt::format("{}", entry.bucket->value) : "-1";
  return fmt::format(
      "{} {} {} group={} bucket={} dtype={} bytes={} elements={}", entry.index.value, name_of(entry.kind),
      name_of(entry.purpose), name_of(entry.group), bucket, name_of(entry.dtype), entry.bytes,
      even ? fmt::format("{}x{}", parts.size(), parts.front()) : fmt::format("{}", fmt::join(parts, ",")));
}

}  // namespace

std::string_view name_of(CollectiveKind kind) noexcept {
  return kKindNames[static_cast<std::size_t>(kind)];
}

std::string_view name_of(PlanPurpose purpose) noexcept {
  return kPurposeNames[static_cast<std::size_t>(purpose)];
}

std::string describe(const PlanEntry& entry) {
  if (!entry.bucket) return fmt::format("{} of the {}", name_of(entry.kind), name_of(entry.purpose));
  return fmt::format("{} of bucket {}", name_of(entry.kind), entry.bucket->value);
}

std::vector<std::string> Plan::lines() const {
  std::vector<std::string> text;
  for (const PlanEntry& entry : entries) text.push_back(line_of(entry));
  return text;
}

std::uint64_t Plan::hash() const {
  return hash64(fmt::format("{}\n", fmt::join(lines(), "\n")));
}

std::optional<std::string> first_difference(std::span<const std::string> ours,
                                            std::span<const std::string> theirs) {
  const auto [mine, other] = std::mismatch(ours.begin(), ours.end(), theirs.begin(), theirs.end());
  if (mine == ours.end() && other == theirs.end()) return std::nullopt;
  const auto line = [](auto at, auto end) {
    return at == end ? std::string("nothing more") : "'" + *at + "'";
  };
  return fmt::format("entry {} is {} here and {} there", mine - ours.begin(), line(mine, ours.end()),
                     line(other, theirs.end()));
}

}  // namespace troupe::core
