#include "actors/world/environment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "actors/world/endpoint.hpp"
#include "actors/world/engine.hpp"
#include "actors/world/slurm.hpp"
#include "actors/world/variables.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"

namespace troupe::actors {

namespace {

using core::Errc;
using core::Result;

constexpr std::int64_t kMostRanks = 1 << 20;

/// One engine's names for the variables that every engine sets.
struct Names {
  const char* launcher;
  const char* rank;
  const char* world;
  const char* local_rank;
  const char* local_world;
  bool needs_local_rank;  ///< otherwise another engine may have set the first two
};

/// An engine that starts within another one comes before it. srun --mpi=pmi2 and Flux set PMI_RANK too.
constexpr Names kEngines[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", false},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", false},
    {"hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", true},
    {"Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "FLUX_JOB_NNODES", false},
    {"PALS", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE", true},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", false},
    {"PMI", "PMI_RANK", "PMI_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", false},
};

bool is(const Names& names, std::string_view launcher) {
  return launcher == names.launcher;
}

/// Whether another launcher started these ranks by PMI, within a task of this engine.
bool is_around_another(const Variables& variables, const Names& names) {
  if (!has_value(variables, "PMI_SIZE")) return false;
  if (is(names, "Flux")) return variables("PMI_SIZE") != variables("FLUX_JOB_SIZE");
  if (!is(names, "Slurm")) return false;
  const auto tasks = slurm::tasks_of_step(variables);
  return tasks && *tasks > 0 && std::to_string(*tasks) != *variables("PMI_SIZE");
}

const Names* engine_of(const Variables& variables) {
  const auto started = [&](const Names& names) {
    return has_value(variables, names.rank) && !is_around_another(variables, names) &&
           (!names.needs_local_rank || has_value(variables, names.local_rank));
  };
  const auto* const found = std::find_if(std::begin(kEngines), std::end(kEngines), started);
  return found == std::end(kEngines) ? nullptr : found;
}

/// Flux tells no local size. It gives every node as many tasks, and the first nodes one more each if the
/// tasks do not divide.
Result<int> flux_tasks_of_node(const Variables& variables, std::int64_t rank, std::int64_t world) {
  const auto nodes = TRY(read_number(variables, "FLUX_JOB_NNODES", 1, 1, world));
  const std::int64_t larger = world % nodes;
  const std::int64_t tasks = world / nodes;
  return static_cast<int>(rank < larger * (tasks + 1) ? tasks + 1 : tasks);
}

Result<void> read_local(const Variables& variables, const Names& names, JobEnvironment& environment) {
  const std::int64_t world = environment.world.value;
  const std::int64_t rank = environment.rank.value;
  if (is(names, "Slurm")) {
    environment.local_world = TRY(slurm::tasks_of_node(variables, world));
  } else if (is(names, "Flux")) {
    environment.local_world = TRY(flux_tasks_of_node(variables, rank, world));
  } else {
    environment.local_world =
        static_cast<int>(TRY(read_number(variables, names.local_world, world, 1, world)));
  }
  // With --virtual-local-rank LOCAL_RANK is 0 everywhere; a rank without the variable is the only one, or one
  // of a host that has all.
  const std::int64_t fallback = environment.local_world == world ? rank : rank % environment.local_world;
  environment.local_rank = static_cast<int>(
      TRY(read_number(variables, names.local_rank, fallback, 0, environment.local_world - 1)));
  if (!has_value(variables, "TROUPE_LOCAL_SLOT")) return {};
  const auto number = [&](const char* name, std::int64_t least) {
    return read_number(variables, name, least, least, kMostRanks);
  };
  environment.slot = ProcessSlot{static_cast<int>(TRY(number("TROUPE_SLOT", 0))),
                                 static_cast<int>(TRY(number("TROUPE_LOCAL_SLOT", 0))),
                                 static_cast<int>(TRY(number("TROUPE_LOCAL_RANKS", 1)))};
  return {};
}

Result<std::int64_t> read_world(const Variables& variables, const Names& names) {
  const auto world = is(names, "Slurm") ? TRY(slurm::tasks_of_step(variables))
                                        : TRY(read_number(variables, names.world, -1, 1, kMostRanks));
  if (world > 0) return world;
  return core::fail(Errc::invalid_argument, "{} is set but {} is not: start all ranks with one launcher",
                    names.rank, names.world);
}

Result<bool> read_own_gpus(const Variables& variables, const Names& names) {
  // A task of Slurm's is one rank only if no other launcher started several in it.
  const bool by_task = is(names, "Slurm") && has_value(variables, "SLURM_GPUS_PER_TASK");
  return TRY(read_number(variables, "TROUPE_OWN_GPUS", by_task ? 1 : 0, 0, 1)) == 1;
}

/// Letters, digits, '-' and '_'. A long name is cut, and ends in a hash of all of it.
std::string safe_name(const std::string& text) {
  constexpr std::size_t kMostBytes = 64;
  std::string safe = text;
  for (char& c : safe) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
    if (!plain) c = '_';
  }
  if (safe.size() <= kMostBytes) return safe;
  return fmt::format("{}_{:016x}", safe.substr(0, kMostBytes - 17), core::hash64(text));
}

/// Two jobs on one host must not have one name. torchrun calls every job "none" unless it is told otherwise.
std::string name_of_job(const Variables& variables, const Names* names, const JobEnvironment& environment) {
  if (has_value(variables, "TROUPE_JOB_ID")) return *variables("TROUPE_JOB_ID");
  const std::string run = variables("TORCHELASTIC_RUN_ID").value_or("");
  if (!run.empty() && run != "none") return run;
  if (names == nullptr || environment.world.value == 1) return environment.job;
  if (is(*names, "Slurm")) return slurm::name_of_job(variables);
  if (is(*names, "Flux") && has_value(variables, "FLUX_JOB_ID")) return "flux_" + *variables("FLUX_JOB_ID");
  if (is(*names, "Open MPI") && has_value(variables, "PMIX_NAMESPACE")) {
    return "mpi_" + *variables("PMIX_NAMESPACE");
  }
  return environment.job;
}

Result<core::Epoch> read_epoch(const Variables& variables) {
  std::int64_t generation = 0;
  for (const char* name : {"SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT", "TROUPE_GENERATION"}) {
    generation = TRY(read_number(variables, name, generation, 0, INT64_MAX - 1));
  }
  return core::Epoch{static_cast<std::uint64_t>(generation) + 1};
}

/// For jobs that their engine numbers: below the ports that the system gives out by itself.
std::uint16_t port_of_job(const std::string& job) {
  return static_cast<std::uint16_t>(20000 + core::hash64(job) % 12000);
}

Result<void> read_master_address(const Variables& variables, const Names& names,
                                 JobEnvironment& environment) {
  const auto port = TRY(read_number(variables, "MASTER_PORT", 0, 1, 65535));
  environment.control_port = static_cast<std::uint16_t>(port);
  if (has_value(variables, "MASTER_ADDR")) {
    auto host = parse_host(*variables("MASTER_ADDR"));
    if (!host) return core::fail(host.error().code, "MASTER_ADDR: {}", host.error().message);
    environment.control_host = std::move(*host);
  } else if (is(names, "Slurm")) {
    environment.control_host = TRY(slurm::host_of_first_task(variables));
  }
  const bool is_here = environment.local_world == environment.world.value;
  const bool has_number = environment.job != JobEnvironment().job && !is(names, "torchrun");
  if (port == 0 && has_number && (is_here || is(names, "Slurm"))) {
    environment.control_port = port_of_job(environment.job);
  }
  return {};
}

/// Where rank 0 listens.
Result<void> read_control_address(const Variables& variables, const Names& names,
                                  JobEnvironment& environment) {
  if (has_value(variables, "TROUPE_CONTROL_ADDR")) {
    const auto text = *variables("TROUPE_CONTROL_ADDR");
    const auto endpoint = parse_endpoint(text);
    if (!endpoint || endpoint->port.value_or(0) == 0) {
      return core::fail(Errc::invalid_argument,
                        "TROUPE_CONTROL_ADDR: expected HOST:PORT, or [ADDRESS]:PORT for IPv6, found {}",
                        core::quoted_excerpt(text));
    }
    environment.control_host = endpoint->host;
    environment.control_port = *endpoint->port;
    return {};
  }
  TRY(read_master_address(variables, names, environment));
  if (environment.control_port == 0) {
    return core::fail(
        Errc::invalid_argument,
        "{} ranks were started by {} but neither TROUPE_CONTROL_ADDR nor MASTER_PORT says where rank 0 "
        "listens; set MASTER_ADDR and MASTER_PORT, or start with `troupe launch`",
        environment.world.value, environment.launcher);
  }
  return {};
}

}  // namespace

ProcessSlot slot_of(const JobEnvironment& environment) {
  return environment.slot.value_or(
      ProcessSlot{environment.rank.value, environment.local_rank, environment.local_world});
}

bool ranks_share_gpus(const JobEnvironment& environment, int visible_gpus) {
  return !environment.has_own_gpus && slot_of(environment).ranks_of_host > visible_gpus;
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

bool is_spare(const Variables& variables) {
  return variables("RANK") == "spare" && has_value(variables, "TROUPE_SLOT");
}

EngineFacts engine_facts(const Variables& variables) {
  EngineFacts facts;
  const Names* const names = engine_of(variables);
  if (names == nullptr) return facts;
  if (has_value(variables, names->local_rank) || has_value(variables, names->local_world)) {
    facts.local_source = fmt::format("{} and {}", names->local_rank, names->local_world);
  }
  // Torch takes no other spelling for true.
  const bool has_agent = variables("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (has_agent && is(*names, "torchrun") && !has_value(variables, "TROUPE_CONTROL_ADDR")) {
    facts.agent_key = fmt::format("/troupe/{}/{}", variables("TORCHELASTIC_RUN_ID").value_or(""),
                                  variables("TORCHELASTIC_RESTART_COUNT").value_or("0"));
  }
  return facts;
}

Result<JobEnvironment> detect_environment(const Variables& variables) {
  JobEnvironment environment;
  if (is_spare(variables)) {
    return core::fail(
        Errc::invalid_argument,
        "this process is a spare (troupe launch --spares) and has no rank; only a trainer whose "
        "process can stay (ProcessWorldOptions::stays) can be one");
  }
  const Names* const names = engine_of(variables);
  if (names != nullptr) {
    environment.launcher = has_value(variables, "TROUPE_JOB_ID") ? "troupe" : names->launcher;
    const auto world = TRY(read_world(variables, *names));
    environment.world = {static_cast<std::int32_t>(world)};
    environment.rank = {static_cast<std::int32_t>(TRY(read_number(variables, names->rank, 0, 0, world - 1)))};
    TRY(read_local(variables, *names, environment));
    environment.has_own_gpus = TRY(read_own_gpus(variables, *names));
  }
  environment.epoch = TRY(read_epoch(variables));
  environment.token = variables("TROUPE_JOB_TOKEN").value_or("");
  environment.directory = variables("TROUPE_LOG_DIR").value_or("");
  environment.job = safe_name(name_of_job(variables, names, environment));
  if (names == nullptr || environment.world.value == 1) return environment;
  TRY(read_control_address(variables, *names, environment));
  if (environment.job == JobEnvironment().job) {
    environment.job = fmt::format("port_{}", environment.control_port);
  }
  return environment;
}

}  // namespace troupe::actors
