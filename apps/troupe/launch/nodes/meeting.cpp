#include "apps/troupe/launch/nodes/meeting.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "actors/world/endpoint.hpp"
#include "actors/world/own_address.hpp"
#include "apps/troupe/host/host_facts.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::apps {

using core::Errc;
using core::Result;

namespace {

/// torchrun's for its c10d rendezvous, and for its static one.
constexpr int kDynamicPort = 29400;
constexpr int kStaticPort = 29500;

/// What --nnodes says.
Result<void> take_nodes(const std::string& text, Meeting& meeting) {
  constexpr core::Bounds<int> kNodes{1, 1 << 20};
  const std::size_t colon = text.find(':');
  const auto least = core::parse_number<int>(std::string_view(text).substr(0, colon), kNodes);
  const auto most = colon == std::string::npos
                        ? least
                        : core::parse_number<int>(std::string_view(text).substr(colon + 1), kNodes);
  if (!least || !most || *most < *least) {
    return core::fail(Errc::invalid_argument, "--nnodes: expected N or MIN:MAX, found {}",
                      core::quoted_excerpt(text));
  }
  meeting.nodes = *most;
  meeting.fewest_nodes = *least;
  return {};
}

/// The launchers' places as their engine numbers them: the ranks that detect_environment() finds are
/// launchers. What describes ranks, or another launcher's, is not looked at.
Result<std::optional<actors::JobEnvironment>> launchers_of_engine(const actors::Variables& variables) {
  static constexpr std::array<std::string_view, 8> kHidden{
      "RANK",          "WORLD_SIZE",          "LOCAL_RANK",        "LOCAL_WORLD_SIZE",
      "TROUPE_JOB_ID", "TROUPE_CONTROL_ADDR", "TROUPE_GENERATION", "TORCHELASTIC_RESTART_COUNT"};
  const bool is_slurm = variables("SLURM_PROCID").has_value() && !variables("OMPI_COMM_WORLD_RANK");
  auto found = TRY(actors::detect_environment([&](const char* name) -> std::optional<std::string> {
    for (const std::string_view hidden : kHidden) {
      if (hidden == name) return std::nullopt;
    }
    auto value = variables(name);
    // Slurm numbers its jobs, from which a port follows.
    if (!value && std::string_view("MASTER_PORT") == name && !is_slurm) {
      return std::to_string(kStaticPort);
    }
    return value;
  }));
  if (found.launcher == "none" || found.world.value == 1) return std::nullopt;
  return std::optional(std::move(found));
}

Result<void> take_engine(const actors::JobEnvironment& launchers, const LaunchOptions& options,
                         const actors::Variables& variables, Meeting& meeting) {
  const int count = launchers.world.value;
  if (options.nnodes.empty() && launchers.local_world > 1 && launchers.launcher != "PMI") {
    return core::fail(Errc::invalid_argument,
                      "{} has started {} launchers on {}: start one on each node (srun --ntasks-per-node=1, "
                      "mpirun --map-by "
                      "ppr:1:node), or give --nnodes {} if each is to be a node, or --standalone if each is "
                      "to run a job of "
                      "its own",
                      launchers.launcher, launchers.local_world, host_name(), count);
  }
  if (!options.nnodes.empty() && meeting.nodes != count) {
    if (options.node_rank) return {};
    return core::fail(Errc::invalid_argument,
                      "--nnodes {}: {} has started {} launchers; leave --nnodes out, or give --node-rank too",
                      meeting.nodes, launchers.launcher, count);
  }
  meeting.nodes = count;
  if (options.nnodes.empty()) meeting.fewest_nodes = count;
  meeting.node = launchers.rank.value;
  meeting.engine = launchers.launcher;
  meeting.host = launchers.control_host;
  meeting.port = launchers.control_port;
  meeting.flag = launchers.launcher;
  const bool says_where = launchers.launcher == "Slurm" || variables("MASTER_ADDR").has_value();
  if (!says_where && launchers.local_world < count && options.master_addr.empty() &&
      options.rdzv_endpoint.empty()) {
    return core::fail(
        Errc::invalid_argument,
        "{} has started {} launchers and does not say where that of node 0 is: give its address "
        "by --master-addr or --rdzv-endpoint, or pass MASTER_ADDR on",
        launchers.launcher, count);
  }
  return {};
}

Result<void> take_endpoint(const LaunchOptions& options, Meeting& meeting) {
  const bool is_static = options.rdzv_backend == "static";
  const int port = options.master_port.value_or(is_static ? kStaticPort : kDynamicPort);
  if (!options.rdzv_endpoint.empty()) {
    auto endpoint = actors::parse_endpoint(options.rdzv_endpoint);
    if (!endpoint) return core::fail(endpoint.error().code, "--rdzv-endpoint: {}", endpoint.error().message);
    meeting.host = std::move(endpoint->host);
    meeting.port = endpoint->port.value_or(static_cast<std::uint16_t>(port));
    meeting.flag = "--rdzv-endpoint";
  } else if (!options.master_addr.empty()) {
    auto host = actors::parse_host(options.master_addr);
    if (!host) return core::fail(host.error().code, "--master-addr: {}", host.error().message);
    meeting.host = std::move(*host);
    meeting.port = port;
    meeting.flag = "--master-addr";
  } else if (meeting.host.empty()) {
    meeting.host = "127.0.0.1";
    meeting.port = port;
    meeting.flag = "--master-addr";
  }
  if (meeting.port != 0) return {};
  return core::fail(Errc::invalid_argument,
                    "{}: the launchers of {} nodes meet at a port that all know; give one, such as {}",
                    meeting.flag, meeting.nodes, kDynamicPort);
}

/// Those keys of --rdzv-conf that mean something here; in seconds.
Result<void> take_configuration(const LaunchOptions& options, Meeting& meeting) {
  if (options.rdzv_conf.empty()) return {};
  std::optional<double> attempts;
  const auto seconds_of = [](double value) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(value));
  };
  for (const std::string& part : CLI::detail::split(options.rdzv_conf, ',')) {
    const std::size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const bool is_ours = key == "join_timeout" || key == "last_call_timeout" ||
                         key == "keep_alive_interval" || key == "keep_alive_max_attempt";
    if (!is_ours) continue;
    const auto value = core::parse_number<double>(equals == std::string::npos ? "" : part.substr(equals + 1),
                                                  {0.05, 1'000'000});
    if (!value) return core::fail(Errc::invalid_argument, "--rdzv-conf: {}: {}", key, value.error().message);
    if (key == "join_timeout") meeting.patience = seconds_of(*value);
    if (key == "last_call_timeout") meeting.last_call = seconds_of(*value);
    if (key == "keep_alive_interval") meeting.heartbeat.interval = seconds_of(*value);
    if (key == "keep_alive_max_attempt") attempts = *value;
  }
  meeting.heartbeat.patience =
      seconds_of(attempts.value_or(5) * std::chrono::duration<double>(meeting.heartbeat.interval).count());
  return {};
}

}  // namespace

Result<Meeting> find_meeting(const LaunchOptions& options, const actors::Variables& variables) {
  Meeting meeting;
  if (!options.nnodes.empty()) TRY(take_nodes(options.nnodes, meeting));
  if (options.standalone && meeting.nodes > 1) {
    return core::fail(Errc::invalid_argument,
                      "--standalone is for one node; leave it out, or leave --nnodes {} out", options.nnodes);
  }
  const bool looks_at_engine = !options.standalone && (options.nnodes.empty() || meeting.nodes > 1);
  if (looks_at_engine) {
    const auto launchers = TRY(launchers_of_engine(variables));
    if (launchers) TRY(take_engine(*launchers, options, variables, meeting));
  }
  if (meeting.nodes == 1) {
    if (options.node_rank.value_or(0) == 0) return Meeting{};
    return core::fail(Errc::invalid_argument,
                      "--node-rank {}: one node has only node rank 0; give --nnodes too", *options.node_rank);
  }
  if (options.node_rank) {
    meeting.node = *options.node_rank;
  } else if (meeting.engine.empty()) {
    meeting.node = -1;
  }
  if (meeting.node >= meeting.nodes) {
    return core::fail(Errc::invalid_argument, "--node-rank {}: {} nodes have node ranks 0 to {}",
                      meeting.node, meeting.nodes, meeting.nodes - 1);
  }
  TRY(take_endpoint(options, meeting));
  TRY(take_configuration(options, meeting));
  return meeting;
}

}  // namespace troupe::apps
