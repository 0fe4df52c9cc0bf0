#include "apps/troupe/plan/quantities.hpp"

#include <array>

#include "core/number.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;

struct Unit {
  std::string_view name;
  double factor;
};

constexpr std::array<Unit, 10> kBytes{{{"", 1},
                                       {"B", 1},
                                       {"kB", 1e3},
                                       {"MB", 1e6},
                                       {"GB", 1e9},
                                       {"TB", 1e12},
                                       {"KiB", 1024.0},
                                       {"MiB", 1024.0 * 1024},
                                       {"GiB", 1024.0 * 1024 * 1024},
                                       {"TiB", 1024.0 * 1024 * 1024 * 1024}}};
constexpr std::array<Unit, 4> kSeconds{{{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}}};

/// A number followed by one of these units, in the first of them.
template <std::size_t kCount>
Result<double> quantity(std::string_view text, const std::array<Unit, kCount>& units, double most) {
  const auto end = std::min(text.find_first_not_of("0123456789.eE+-"), text.size());
  // "1e3" is a number, "1EiB" is not.
  const auto number = core::parse_number<double>(text.substr(0, end), {0, most});
  for (const auto& [name, factor] : units) {
    if (number && text.substr(end) == name && *number * factor <= most) return *number * factor;
  }
  return core::fail(Errc::invalid_argument, "{} is none", core::quoted_excerpt(text));
}

constexpr double kMostBytes = 1e15;
constexpr double kLeastBandwidth = 1e3;
constexpr double kMostLatency = 1e3;

}  // namespace

Result<std::int64_t> parse_bytes(std::string_view text) {
  const auto bytes = quantity(text, kBytes, kMostBytes);
  if (bytes && *bytes >= 1) return static_cast<std::int64_t>(*bytes);
  return core::fail(Errc::invalid_argument, "expected bytes up to a petabyte, as in 80GiB or 80GB, found {}",
                    core::quoted_excerpt(text));
}

Result<std::pair<std::string, core::Link>> parse_link(std::string_view text) {
  const auto wrong =
      core::fail(Errc::invalid_argument,
                 "expected inner or outer with bandwidth and latency, as in inner=400GB/s,5us, found {}",
                 core::quoted_excerpt(text));
  const auto equals = text.find('=');
  const auto comma = text.find(',');
  if (equals == text.npos || comma == text.npos || comma < equals) return wrong;
  const auto name = text.substr(0, equals);
  auto bandwidth = text.substr(equals + 1, comma - equals - 1);
  if ((name != "inner" && name != "outer") || !bandwidth.ends_with("/s")) return wrong;
  bandwidth.remove_suffix(2);
  const auto bytes = quantity(bandwidth, kBytes, kMostBytes);
  const auto seconds = quantity(text.substr(comma + 1), kSeconds, kMostLatency);
  if (!bytes || *bytes < kLeastBandwidth || !seconds) return wrong;
  return std::pair{std::string(name), core::Link{*bytes, *seconds}};
}

}  // namespace troupe::apps
