// A job for scripts/recovery_times --mib: many MiB of state per rank, and steps that cost little. All but a
// small part of the state is frozen parameters, so that a step does not move it. Each step, and each
// beginning, is a line of JSON in the record, as in that of `gpt`.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "actors/session/session.hpp"
#include "actors/shell/process_world.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"

namespace {

using namespace troupe;
using core::Result;

constexpr std::int64_t kMib = 1 << 20;
constexpr std::int64_t kPieceMib = 16;

struct Job {
  std::int64_t mib = 0;
  std::string checkpoints;
  std::FILE* record = nullptr;

  void say(const std::string& line) const {
    if (record == nullptr) return;
    std::fputs((line + "\n").c_str(), record);
    std::fflush(record);
  }
};

Result<void> begin(actors::Session& session, const Job& job) {
  if (TRY(session.recover())) return {};
  const auto count = session.parameters().size();
  for (std::uint32_t p = 0; p < count; ++p) {
    TRY(session.write_parameter({p}, [p](std::int64_t first, std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>((first + static_cast<std::int64_t>(i) + p) % 1021);
    }));
  }
  if (!job.checkpoints.empty()) TRY(session.restore());
  return {};
}

/// One value of each page: a job's steps read all of its state, and memory that nobody has touched for long
/// may be slow to reach.
Result<void> look_at(actors::Session& session, core::ParameterIndex frozen) {
  constexpr std::size_t kPage = 4096 / sizeof(float);
  TRY(session.before_use(frozen));
  const auto values = TRY(session.parameter(frozen));
  volatile float seen = 0;
  for (std::size_t i = 0; i < values.size(); i += kPage) seen = values[i];
  (void)seen;
  return {};
}

Result<void> train(actors::ProcessWorld& world, const Job& job) {
  actors::SessionOptions options;
  options.training.lanes = 4;
  options.training.strategy = core::Strategy::ddp;
  std::vector<core::ParameterSpec> parameters{{"small", {1024}}};
  for (std::int64_t done = 0; done < job.mib; done += kPieceMib) {
    core::ParameterSpec frozen{fmt::format("frozen{}", done),
                               {std::min(kPieceMib, job.mib - done) * kMib / 4}};
    frozen.trainable = false;
    parameters.push_back(frozen);
  }
  auto session = TRY(actors::Session::join(world, options, parameters));
  TRY(begin(*session, job));
  const bool speaks = world.rank().value == 0;
  const bool again = world.environment().epoch.value > 1;
  if (speaks) job.say(fmt::format("{{\"kind\": \"{}\"}}", again ? "restart" : "start"));
  const auto frozen = static_cast<std::uint32_t>(parameters.size() - 1);
  for (std::uint32_t turn = 0;; ++turn) {
    TRY(session->begin_step(0.125));
    for (const auto lane : session->lanes()) {
      TRY(session->begin_lane(lane));
      if (frozen > 0) TRY(look_at(*session, {1 + turn % frozen}));
      TRY(session->before_use({0}));
      for (float& value : TRY(session->gradient({0}))) value += 1;
      TRY(session->gradient_ready({0}));
      TRY(session->end_lane(1));
    }
    const auto outcome = TRY(session->finish_step());
    if (speaks) job.say(fmt::format("{{\"step\": {}, \"loss\": {}}}", outcome.step.value, outcome.loss));
  }
}

Result<void> run(Job job) {
  actors::ProcessWorldOptions options;
  options.stays = true;
  options.checkpoint_directory = job.checkpoints;
  auto world = TRY(actors::ProcessWorld::create(options));
  while (true) {
    auto end = train(*world, job);
    if (end || !world->form_anew(end.error())) return end;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto mib =
      argc > 2 ? core::parse_number<std::int64_t>(argv[1], {1, 1 << 20}) : Result<std::int64_t>(0);
  if (argc < 3 || !mib) {
    std::fprintf(stderr, "usage: bench_recovery MIB RECORD [CHECKPOINTS]\n");
    return 2;
  }
  auto result = run({*mib, argc > 3 ? argv[3] : "", std::fopen(argv[2], "a")});
  if (!result) std::fprintf(stderr, "bench_recovery: %s\n", result.error().message.c_str());
  return result ? 0 : 96;
}
