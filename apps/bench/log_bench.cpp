// What a log call costs where its level is off: about as much as the comparison it is. "actor" is the whole
// way of a message through a role's shell, which asks twice.

#include <benchmark/benchmark.h>

#include <chrono>
#include <memory>
#include <string>

#include "actors/shell/role_host.hpp"
#include "actors/world/log.hpp"

namespace troupe::apps {
namespace {

using actors::Log;
using actors::Logger;
using actors::LogLevel;
using actors::Subsystem;

std::unique_ptr<Log> silent_log(LogLevel level) {
  actors::LogOptions options;
  options.levels.set_all(level);
  options.lines = [](std::string_view line) { benchmark::DoNotOptimize(line.data()); };
  return Log::open(std::move(options)).value();
}

void nothing(benchmark::State& state) {
  int value = 0;
  for (auto _ : state) benchmark::DoNotOptimize(++value);
}

void off(benchmark::State& state) {
  const auto log = silent_log(LogLevel::info);
  const Logger logger(*log, Subsystem::actors);
  int value = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(++value);
    logger.debug("bucket {} of step {} is launched", value, value);
  }
}

void on(benchmark::State& state) {
  const auto log = silent_log(LogLevel::debug);
  const Logger logger(*log, Subsystem::actors);
  int value = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(++value);
    logger.debug("bucket {} of step {} is launched", value, value);
  }
}

/// Hears everything, and does nothing.
class Deaf final : public actors::Machine {
 public:
  void receive(const messages::Envelope&, actors::Outbox&) override {}
  std::string_view state() const override { return "deaf"; }
  std::string waiting_for() const override { return {}; }
};

class NoEffects final : public actors::EffectSink {
 public:
  void post(messages::Envelope) override {}
  void arm(actors::TimerId, std::uint64_t, std::chrono::nanoseconds) override {}
  void perform(const messages::Address&, const actors::Work&) override {}
};

void actor(benchmark::State& state, const Logger& logger) {
  NoEffects effects;
  const messages::Address self{core::Rank{0}, messages::Role::conductor, 0};
  actors::RoleHost host(
      self, core::Epoch{1}, std::make_unique<Deaf>(), effects, nullptr,
      [] { return std::chrono::steady_clock::now().time_since_epoch(); }, nullptr, logger);
  const messages::Envelope envelope{self, self, core::Epoch{1}, messages::StepCommitted{}};
  for (auto _ : state) host.receive(envelope);
}

void actor_without_log(benchmark::State& state) {
  actor(state, {});
}

void actor_with_log_off(benchmark::State& state) {
  const auto log = silent_log(LogLevel::info);
  actor(state, {*log, Subsystem::actors});
}

void actor_with_log_on(benchmark::State& state) {
  const auto log = silent_log(LogLevel::trace);
  actor(state, {*log, Subsystem::actors});
}

BENCHMARK(nothing);
BENCHMARK(off);
BENCHMARK(on);
BENCHMARK(actor_without_log);
BENCHMARK(actor_with_log_off);
BENCHMARK(actor_with_log_on);

}  // namespace
}  // namespace troupe::apps

BENCHMARK_MAIN();
