#include "actors/world/environment.hpp"

#include <cstdlib>

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
    environment.local_world = static_cast<int>(TRY(number(variables, names.local_world, world, 1, world)));
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
