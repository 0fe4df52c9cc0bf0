#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::core {

enum class CountKind : std::uint8_t {
  even,     ///< every member puts in as much
  table,    ///< known before the step, and not the same for all
  bounded,  ///< known when data is there: an exchange of counts comes first, these are the most
};
std::string_view name_of(CountKind kind) noexcept;

/// `members` neighbours in a group that put in `elements` each.
struct CountRun {
  std::int64_t elements = 0;
  std::int64_t members = 0;

  friend bool operator==(const CountRun&, const CountRun&) = default;
};

/// How many elements each member of a group puts into a collective, in group order.
struct Counts {
  CountKind kind = CountKind::even;
  std::vector<CountRun> runs;

  static Counts even(std::int64_t elements, std::int64_t members);
  static Counts bounded(std::int64_t most, std::int64_t members);
  /// `even` when all are equal.
  static Counts table(const std::vector<std::int64_t>& elements);
  /// The same; runs without members are left out.
  static Counts of_runs(const std::vector<CountRun>& runs);

  std::int64_t members() const;
  std::int64_t total() const;
  std::int64_t most() const;
  std::int64_t of(std::int64_t member) const;
  /// One for each member.
  std::vector<std::int64_t> each() const;
  /// "8x512", "2x1998,1x999", "at most 8x512"
  std::string text() const;

  friend bool operator==(const Counts&, const Counts&) = default;
};

}  // namespace troupe::core
