#include "apps/troupe/plan/capacity_report.hpp"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>

#include "core/errors.hpp"
#include "core/program/job_programs.hpp"

namespace troupe::apps {

namespace {

constexpr double kGib = 1024.0 * 1024 * 1024;

std::vector<std::string> strategies_on(int outer) {
  if (outer > 1) return {"zero1", "zero2", "hsdp", "hfsdp"};
  return {"ddp", "zero1", "zero2", "zero3"};
}

core::Result<Capacity> capacity_of(const CapacityArguments& arguments, const std::string& strategy) {
  auto program = arguments.program;
  program.strategy = strategy;
  const auto job = TRY(core::plan_all(TRY(program_inputs(program))));
  Capacity capacity{.strategy = strategy};
  for (const auto& one : job.programs) {
    const auto memory = core::memory_of(one);
    if (memory.total() <= capacity.memory.total()) continue;
    capacity.memory = memory;
    capacity.sent_bytes = 0;
    for (const auto& traffic : core::traffic_of(one)) capacity.sent_bytes += traffic.bytes;
  }
  capacity.fits = static_cast<double>(capacity.memory.total()) <= arguments.memory_gib * kGib;
  return capacity;
}

std::string json_of(const std::vector<Capacity>& found) {
  auto json = nlohmann::ordered_json::array();
  for (const auto& capacity : found) {
    const auto& memory = capacity.memory;
    json.push_back({{"strategy", capacity.strategy},
                    {"parameters_bytes", memory.parameters},
                    {"gradients_bytes", memory.gradients},
                    {"main_bytes", memory.main},
                    {"optimizer_bytes", memory.optimizer},
                    {"parameter_pool_bytes", memory.parameter_pool},
                    {"gradient_pool_bytes", memory.gradient_pool},
                    {"staging_bytes", memory.staging},
                    {"scratch_bytes", memory.scratch},
                    {"checks_bytes", memory.checks},
                    {"total_bytes", memory.total()},
                    {"sent_bytes", capacity.sent_bytes},
                    {"fits", capacity.fits}});
  }
  return json.dump() + "\n";
}

std::string table_of(const std::vector<Capacity>& found) {
  constexpr auto kRow = "{:<8} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}  {}\n";
  std::string text = fmt::format(kRow, "strategy", "parameters", "gradients", "main", "optimizer", "pools",
                                 "staging", "total", "sent", "fits");
  const auto gib = [](std::int64_t bytes) {
    return fmt::format("{:.3f}", static_cast<double>(bytes) / kGib);
  };
  for (const auto& capacity : found) {
    const auto& memory = capacity.memory;
    fmt::format_to(std::back_inserter(text), kRow, capacity.strategy, gib(memory.parameters),
                   gib(memory.gradients), gib(memory.main), gib(memory.optimizer), gib(memory.pools()),
                   gib(memory.staging + memory.scratch + memory.checks), gib(memory.total()),
                   gib(capacity.sent_bytes), capacity.fits ? "yes" : "no");
  }
  return text + "\nGiB of the rank that needs most, without activations; what it sends in a step\n";
}

}  // namespace

core::Result<std::vector<Capacity>> capacities(const CapacityArguments& arguments) {
  std::vector<Capacity> found;
  const auto& wanted = arguments.strategies;
  for (const auto& strategy : wanted.empty() ? strategies_on(arguments.program.outer) : wanted) {
    found.push_back(TRY(capacity_of(arguments, strategy)));
  }
  return found;
}

core::Result<std::string> report_capacity(const CapacityArguments& arguments) {
  const auto found = TRY(capacities(arguments));
  return arguments.program.json ? json_of(found) : table_of(found);
}

}  // namespace troupe::apps
