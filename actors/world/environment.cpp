#include "actors/world/environment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::actors {

namespace {

/// One launcher's names for the variables that every launcher sets.
struct Names {
  const char* launcher;
  const char* rank;
  const char* world;
  const char* local_rank;
  const char* local_world;
};

constexpr Names kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
};

/// The ranks of each node, in the order of SLURM_NODEID. SLURM_NTASKS_PER_NODE is only what was asked for,
/// and set only where somebody asked.
constexpr const char* kSlurmLists[] = {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"};

core::Result<std::int64_t> number(const Variables& variables, const char* name, std::int64_t fallback,
                                  std::int64_t least, std::int64_t most) {
  auto text = variables(name);
  if (!text || text->empty()) return fallback;
  const auto value = core::parse_number<std::int64_t>(*text, {least, most});
  if (!value) return core::fail(value.error().code, "{}: {}", name, value.error().message);
  return *value;
}

std::string safe_name(const std::string& text) {
  std::string safe;
  for (char c : text) {
    bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
    safe += plain ? c : '_';
  }
  return safe;
}

/// One entry of a list of Slurm's, "4", or "8(x2)" for two nodes with eight ranks each.
struct SlurmEntry {
  std::int64_t ranks = 0;
  std::int64_t nodes = 1;
};

core::Result<SlurmEntry> parse_slurm_entry(std::string_view text, std::int64_t world) {
  SlurmEntry entry;
  const auto open = text.find("(x");
  if (open != std::string_view::npos) {
    const auto count = text.ends_with(')') ? text.substr(open + 2, text.size() - open - 3) : text;
    entry.nodes = TRY(core::parse_number<std::int64_t>(count, {1, world}));
  }
  entry.ranks = TRY(core::parse_number<std::int64_t>(text.substr(0, open), {1, world}));
  return entry;
}

/// The number of ranks of this node by a list such as "8(x2),4", where SLURM_NODEID counts: 8, 8, 4.
core::Result<int> read_slurm_list(const Variables& variables, const char* name, std::int64_t world) {
  const std::string list = variables(name).value_or("");
  std::vector<SlurmEntry> entries;
  std::int64_t nodes = 0;
  for (std::size_t start = 0; start <= list.size();) {
    const auto end = std::min(list.find(',', start), list.size());
    const auto entry = parse_slurm_entry(std::string_view(list).substr(start, end - start), world);
    if (!entry) {
      return core::fail(entry.error().code, "{}: expected numbers of ranks such as 8(x2),4, found {}: {}",
                        name, core::quoted_excerpt(list), entry.error().message);
    }
    entries.push_back(*entry);
    nodes += entry->nodes;
    start = end + 1;
  }
  const auto node = TRY(number(variables, "SLURM_NODEID", nodes == 1 ? 0 : -1, 0, INT32_MAX));
  std::int64_t first = 0;
  for (const SlurmEntry& entry : entries) {
    if (node >= first && node < first + entry.nodes) return static_cast<int>(entry.ranks);
    first += entry.nodes;
  }
  return core::fail(core::Errc::invalid_argument,
                    "{}={} is for {} nodes, and SLURM_NODEID{}; start all ranks with one srun", name, list,
                    nodes, node < 0 ? " is not set" : fmt::format(" is {}", node));
}

core::Result<int> read_local_world(const Variables& variables, const Names& names, std::int64_t world) {
  if (std::string_view(names.launcher) == "Slurm") {
    for (const char* list : kSlurmLists) {
      if (!variables(list).value_or("").empty()) return read_slurm_list(variables, list, world);
    }
    const auto nodes = TRY(number(variables, "SLURM_NNODES", 1, 1, INT32_MAX));
    if (nodes > 1 && variables(names.local_world).value_or("").empty()) {
      return core::fail(core::Errc::invalid_argument,
                        "SLURM_NNODES is {}, and none of {}, {} and {} says how many ranks this node has; "
                        "start all ranks with srun, and give it --ntasks-per-node",
                        nodes, kSlurmLists[0], kSlurmLists[1], names.local_world);
    }
  }
  return static_cast<int>(TRY(number(variables, names.local_world, world, 1, world)));
}

core::Result<bool> read_own_gpus(const Variables& variables, const Names& names) {
  // A task of Slurm's is one rank only if no other launcher started several in it.
  const bool by_task = std::string_view(names.launcher) == "Slurm" && variables("SLURM_GPUS_PER_TASK");
  return TRY(number(variables, "TROUPE_OWN_GPUS", by_task ? 1 : 0, 0, 1)) == 1;
}

core::Result<void> read_control_address(const Variables& variables, JobEnvironment& environment) {
  if (auto address = variables("TROUPE_CONTROL_ADDR")) {
    auto colon = address->rfind(':');
    if (colon == std::string::npos || colon == 0) {
      return core::fail(core::Errc::invalid_argument, "TROUPE_CONTROL_ADDR={} is not HOST:PORT", *address);
    }
    environment.control_host = address->substr(0, colon);
    Variables port = [&](const char*) { return std::optional(address->substr(colon + 1)); };
    environment.control_port =
        static_cast<std::uint16_t>(TRY(number(port, "the port of TROUPE_CONTROL_ADDR", 0, 1, 65535)));
    return {};
  }
  environment.control_host = variables("MASTER_ADDR").value_or("127.0.0.1");
  environment.control_port = static_cast<std::uint16_t>(TRY(number(variables, "MASTER_PORT", 0, 1, 65535)));
  return {};
}

}  // namespace

bool ranks_share_gpus(const JobEnvironment& environment, int visible_gpus) {
  return !environment.has_own_gpus && environment.local_world > visible_gpus;
}

int visible_gpus(const Variables& variables) {
  if (const auto chosen = variables("CUDA_VISIBLE_DEVICES")) {
    if (chosen->empty() || *chosen == "-1") return 0;
    return 1 + static_cast<int>(std::count(chosen->begin(), chosen->end(), ','));
  }
  int count = 0;
  while (std::filesystem::exists("/dev/nvidia" + std::to_string(count))) ++count;
  return count;
}

Variables process_variables() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
}

core::Result<JobEnvironment> detect_environment(const Variables& variables) {
  JobEnvironment environment;
  for (const auto& names : kLaunchers) {
    if (!variables(names.rank)) continue;
    environment.launcher = variables("TROUPE_JOB_ID") ? "troupe" : names.launcher;
    auto world = TRY(number(variables, names.world, -1, 1, 1 << 20));
    if (world < 0) {
      return core::fail(core::Errc::invalid_argument,
                        "{} is set but {} is not: start all ranks with one launcher", names.rank,
                        names.world);
    }
    environment.world = {static_cast<std::int32_t>(world)};
    environment.rank = {static_cast<std::int32_t>(TRY(number(variables, names.rank, 0, 0, world - 1)))};
    environment.local_rank =
        static_cast<int>(TRY(number(variables, names.local_rank, environment.rank.value, 0, world - 1)));
    environment.local_world = TRY(read_local_world(variables, names, world));
    environment.has_own_gpus = TRY(read_own_gpus(variables, names));
    break;
  }
  environment.job = safe_name(
      variables("TROUPE_JOB_ID").value_or(variables("TORCHELASTIC_RUN_ID").value_or(environment.job)));
  auto generation = TRY(number(variables, "TROUPE_GENERATION", -1, 0, INT64_MAX - 1));
  if (generation < 0) generation = TRY(number(variables, "TORCHELASTIC_RESTART_COUNT", 0, 0, INT64_MAX - 1));
  environment.epoch = {static_cast<std::uint64_t>(generation) + 1};
  environment.token = variables("TROUPE_JOB_TOKEN").value_or("");
  environment.directory = variables("TROUPE_LOG_DIR").value_or("");
  TRY(read_control_address(variables, environment));
  if (environment.world.value > 1 && environment.control_port == 0) {
    return core::fail(
        core::Errc::invalid_argument,
        "{} ranks were started by {} but neither TROUPE_CONTROL_ADDR nor MASTER_PORT says where rank 0 "
        "listens; set MASTER_ADDR and MASTER_PORT, or start with `troupe launch`",
        environment.world.value, environment.launcher);
  }
  return environment;
}

}  // namespace troupe::actors
