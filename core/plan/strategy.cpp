#include "core/plan/strategy.hpp"

#include <array>

#include "core/errors.hpp"

namespace troupe::core {
namespace {

constexpr std::array<std::string_view, 6> kNames{"ddp", "zero1", "zero2", "zero3", "hsdp", "hfsdp"};
constexpr std::array<std::string_view, 2> kNumericsNames{"fast", "ordered"};

}  // namespace

std::string_view name_of(Strategy strategy) noexcept {
  return kNames[static_cast<std::size_t>(strategy)];
}

Result<Strategy> strategy_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<Strategy>(i);
  }
  return fail(Errc::invalid_argument,
              "'{}' is not a strategy; choose one of ddp, zero1, zero2, zero3, hsdp, hfsdp", name);
}

std::string_view name_of(Numerics numerics) noexcept {
  return kNumericsNames[static_cast<std::size_t>(numerics)];
}

Result<Numerics> numerics_from_name(std::string_view name) {
  if (name == kNumericsNames[0]) return Numerics::fast;
  if (name == kNumericsNames[1]) return Numerics::ordered;
  return fail(Errc::invalid_argument, "'{}' is not a kind of numerics; choose fast or ordered", name);
}

}  // namespace troupe::core
