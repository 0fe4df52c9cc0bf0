// A trainer whose memory is that of its session: large layers, next to no compute. It leaves what the
// operating system says of its process, and what the plan says, in a file of its rank.
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <optional>

#include "actors/planes/step/device_memory.hpp"
#include "actors/session/session.hpp"
#include "actors/shell/process_world.hpp"
#include "actors/shell/rank_world.hpp"
#include "core/errors.hpp"
#include "core/optimizer/optimizer.hpp"
#include "core/plan/terms.hpp"

namespace {

using namespace troupe;

struct Arguments {
  std::string strategy = "zero3";
  std::string numerics = "fast";
  std::string collectives = "shared_memory";
  std::string optimizer = "adamw";
  int layers = 12;
  std::int64_t rows = 1024;
  std::int64_t columns = 2048;
  int lanes = 0;
  int steps = 2;
  int sessions = 1;
  std::uint64_t data_limit = 0;     ///< RLIMIT_DATA
  std::uint64_t address_limit = 0;  ///< RLIMIT_AS
  int limited_rank = -1;            ///< none: all
  std::string output;
};

/// "VmHWM" and the like, in bytes.
std::uint64_t status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stoull(line.substr(name.size() + 1)) << 10;
  }
  return 0;
}

void limit(int resource, std::uint64_t bytes) {
  const rlimit wanted{bytes, bytes};
  if (bytes > 0 && setrlimit(static_cast<__rlimit_resource_t>(resource), &wanted) != 0)
    std::perror("setrlimit");
}

core::Result<void> pass(actors::Session& session, const Arguments& a) {
  const auto parameter = [](int layer) { return core::ParameterIndex{static_cast<std::uint32_t>(layer)}; };
  double loss = 1;
  for (int layer = 0; layer < a.layers; ++layer) {
    TRY(session.before_use(parameter(layer)));
    for (const float value : TRY(session.parameter(parameter(layer))))
      loss += 1e-9 * static_cast<double>(value);
  }
  TRY(session.begin_backward());
  for (int layer = a.layers; layer-- > 0;) {
    TRY(session.before_use(parameter(layer)));
    const auto values = TRY(session.parameter(parameter(layer)));
    const auto gradients = TRY(session.gradient(parameter(layer)));
    for (std::size_t i = 0; i < values.size(); ++i) gradients[i] += 1e-3F * values[i];
    TRY(session.gradient_ready(parameter(layer)));
  }
  return session.end_lane(loss);
}

core::Result<void> train(actors::RankWorld& world, const Arguments& a, std::ostream& out) {
  actors::SessionOptions options;
  auto& training = options.training;
  training.strategy = TRY(core::strategy_from_name(a.strategy));
  training.numerics = TRY(core::numerics_from_name(a.numerics));
  training.lanes = a.lanes;
  training.bucket_elements = a.rows * a.columns;
  training.optimizer.kind = TRY(core::optimizer_from_name(a.optimizer));
  std::vector<core::ParameterSpec> specs;
  for (int layer = 0; layer < a.layers; ++layer) {
    core::ParameterSpec spec{.name = fmt::format("layer{}", layer), .shape = {a.rows, a.columns}};
    spec.unit = core::UnitIndex{static_cast<std::uint32_t>(layer)};
    specs.push_back(std::move(spec));
  }
  auto session = TRY(actors::Session::join(world, options, specs));
  for (int layer = 0; layer < a.layers; ++layer) {
    TRY(session->write_parameter(core::ParameterIndex{static_cast<std::uint32_t>(layer)},
                                 [](std::int64_t first, std::span<float> values) {
                                   for (auto& value : values) value = 1e-3F * static_cast<float>(first++ % 7);
                                 }));
  }
  int committed = 0;
  for (int step = 0; step < a.steps; ++step) {
    TRY(session->begin_step(1e-3));
    for (const core::Lane lane : session->lanes()) {
      TRY(session->begin_lane(lane));
      TRY(session->begin_microbatch(0));
      TRY(pass(*session, a));
    }
    committed += TRY(session->finish_step()).committed ? 1 : 0;
  }
  const auto planned = session->planned_memory();
  const auto taken = session->device_memory();
  out << "planned_at_rest " << planned.at_rest << "\nplanned_pools " << planned.pools << "\nplanned_staging "
      << planned.staging << "\ntaken_at_rest " << taken.at_rest << "\ntaken_pools " << taken.pools
      << "\ntaken_staging " << taken.staging << "\ncommitted " << committed << "\ndata "
      << status_bytes("VmData") << "\n";
  TRY(session->leave());
  return {};
}

core::Result<void> run(const Arguments& a, std::ostream& out) {
  for (int i = 0; i < a.sessions; ++i) {
    actors::ProcessWorldOptions options;
    options.collectives = a.collectives;
    options.environment = [i]() -> core::Result<actors::JobEnvironment> {
      auto found = TRY(actors::detect_environment(actors::process_variables()));
      found.epoch.value += static_cast<decltype(found.epoch.value)>(i);
      return found;
    };
    {
      const auto world = TRY(actors::ProcessWorld::create(options));
      TRY(train(*world, a, out));
      out << "peak " << status_bytes("VmHWM") << "\naddresses " << status_bytes("VmPeak") << "\n";
    }
    malloc_trim(0);  // what the allocator keeps of threads that have ended is no session's
    out << "resident_after_" << i + 1 << " " << status_bytes("VmRSS") << "\n";
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  Arguments a;
  CLI::App app("Large layers");
  app.add_option("--strategy", a.strategy);
  app.add_option("--numerics", a.numerics);
  app.add_option("--collectives", a.collectives);
  app.add_option("--optimizer", a.optimizer);
  app.add_option("--layers", a.layers);
  app.add_option("--rows", a.rows);
  app.add_option("--columns", a.columns);
  app.add_option("--lanes", a.lanes);
  app.add_option("--steps", a.steps);
  app.add_option("--sessions", a.sessions);
  app.add_option("--data-limit", a.data_limit);
  app.add_option("--address-limit", a.address_limit);
  app.add_option("--limited-rank", a.limited_rank);
  app.add_option("--output", a.output)->required();
  CLI11_PARSE(app, argc, argv);
  const auto environment = actors::detect_environment(actors::process_variables());
  if (!environment) return 2;
  const int rank = environment->rank.value;
  if (a.limited_rank < 0 || a.limited_rank == rank) {
    limit(RLIMIT_DATA, a.data_limit);
    limit(RLIMIT_AS, a.address_limit);
  }
  // The launcher ends all ranks when one fails; here each is to say itself what it was told.
  (void)signal(SIGTERM, SIG_IGN);
  std::ofstream out(fmt::format("{}/rank_{}", a.output, rank));
  const auto result = run(a, out);
  if (result) return 0;
  out << "error " << static_cast<int>(result.error().code) << " " << result.error().message << "\n";
  std::fprintf(stderr, "layers: %s\n", result.error().message.c_str());
  return 1;
}
