#include "core/plan/terms.hpp"

#include "core/enum_names.hpp"
#include "core/errors.hpp"

namespace troupe::core {
namespace {

constexpr auto kNames = enum_names<Strategy>("ddp", "zero1", "zero2", "zero3", "hsdp", "hfsdp");
constexpr auto kNumericsNames = enum_names<Numerics>("fast", "ordered");
constexpr auto kCollectiveNames =
    enum_names<CollectiveKind>("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast");
constexpr auto kPassNames = enum_names<Pass>("forward", "backward", "weights");

}  // namespace

std::string_view name_of(Strategy strategy) noexcept {
  return kNames[strategy];
}

Result<Strategy> strategy_from_name(std::string_view name) {
  if (const auto strategy = kNames.find(name)) return *strategy;
  return fail(Errc::invalid_argument,
              "'{}' is not a strategy; choose one of ddp, zero1, zero2, zero3, hsdp, hfsdp", name);
}

std::string_view name_of(Numerics numerics) noexcept {
  return kNumericsNames[numerics];
}

Result<Numerics> numerics_from_name(std::string_view name) {
  if (const auto numerics = kNumericsNames.find(name)) return *numerics;
  return fail(Errc::invalid_argument, "'{}' is not a kind of numerics; choose fast or ordered", name);
}

std::string_view name_of(CollectiveKind kind) noexcept {
  return kCollectiveNames[kind];
}

std::string_view name_of(Pass pass) noexcept {
  return kPassNames[pass];
}

}  // namespace troupe::core
