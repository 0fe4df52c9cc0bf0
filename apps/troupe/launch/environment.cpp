#include "apps/troupe/launch/environment.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "actors/world/endpoint.hpp"
#include "apps/troupe/host/host_facts.hpp"
#include "posix/entropy.hpp"

namespace troupe::apps {

namespace fs = std::filesystem;

namespace {

using actors::ProcessPlace;
using Variables = std::map<std::string, std::string, std::less<>>;

void set_torchrun_variables(const Job& job, const Generation& generation, ProcessPlace place,
                            Variables& variables) {
  const auto set = [&](const char* name, std::string value) { variables[name] = std::move(value); };
  const std::string world = std::to_string(generation.seats.size());
  const std::string spare = "spare";
  const std::string global_rank = place.rank ? std::to_string(*place.rank) : spare;
  const std::string local_rank =
      place.rank ? std::to_string(numbers_of(generation, *place.rank).local_rank) : spare;
  set("RANK", global_rank);
  set("LOCAL_RANK", job.options.virtual_local_rank ? "0" : local_rank);
  set("WORLD_SIZE", world);
  set("LOCAL_WORLD_SIZE", std::to_string(std::max(ranks_of_node(generation, job.place.node), 1)));
  set("GROUP_RANK", std::to_string(job.place.node));
  set("GROUP_WORLD_SIZE", std::to_string(job.place.nodes));
  set("ROLE_NAME", job.options.role);
  set("ROLE_RANK", global_rank);
  set("ROLE_WORLD_SIZE", world);
  set("MASTER_ADDR", generation.master_addr);
  set("MASTER_PORT", std::to_string(generation.master_port));
  set("TORCHELASTIC_RESTART_COUNT", std::to_string(generation.number));
  set("TORCHELASTIC_MAX_RESTARTS", std::to_string(job.options.max_restarts));
  set("TORCHELASTIC_RUN_ID", job.run_id);
  // No store of ours runs at the master's port: rank 0 is to open it.
  set("TORCHELASTIC_USE_AGENT_STORE", "False");
  set("TORCHELASTIC_ERROR_FILE", error_file(job, generation.number, place.slot).string());
  variables.try_emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (job.ranks > 1) variables.try_emplace("OMP_NUM_THREADS", "1");
}

void set_own_variables(const Job& job, const Generation& generation, int slot, Variables& variables) {
  const auto set = [&](const char* name, std::string value) { variables[name] = std::move(value); };
  set("TROUPE_JOB_ID", job.id);
  set("TROUPE_JOB_TOKEN", job.token);
  set("TROUPE_GENERATION", std::to_string(generation.number));
  set("TROUPE_CONTROL_ADDR",
      to_string(
          actors::Endpoint{generation.control_host, static_cast<std::uint16_t>(generation.control_port)}));
  set("TROUPE_NODE_ID", host_name());
  const std::string mark = mark_of(job);
  variables[mark.substr(0, mark.find('='))] = mark.substr(mark.find('=') + 1);
  set("TROUPE_INSTANCE_ID",
      fmt::format("{}-{}-{}", generation.number, job.place.first_slot + slot, posix::unique_name()));
  set("TROUPE_FENCE_TOKEN", generation.fence_token);
  set("TROUPE_ERROR_FILE", error_file(job, generation.number, slot).string());
  set("TROUPE_FAILURE_FILE", failure_file(job, generation.number).string());
  set("TROUPE_PROGRESS_FILE", progress_file(job).string());
  set("TROUPE_FLIGHT_RECORD", flight_record(job).string());
  for (const char* name :
       {"TROUPE_SLOT", "TROUPE_LOCAL_SLOT", "TROUPE_LOCAL_RANKS", "TROUPE_EPOCH_FILE", "TROUPE_MEMBER_FILE"})
    variables.erase(name);
  if (job.keeps_processes) {
    set("TROUPE_SLOT", std::to_string(job.place.first_slot + slot));
    set("TROUPE_LOCAL_SLOT", std::to_string(slot));
    set("TROUPE_LOCAL_RANKS", std::to_string(job.ranks));
    set("TROUPE_EPOCH_FILE", epoch_file(job).string());
    set("TROUPE_MEMBER_FILE", member_file(job, slot).string());
  }
  const auto& options = job.options;
  if (!options.log_levels.empty()) set("TROUPE_LOG", options.log_levels);
  if (options.log_json) set("TROUPE_LOG_JSON", "1");
  if (options.log_file_mib) set("TROUPE_LOG_FILE_MIB", std::to_string(*options.log_file_mib));
  variables.erase("TROUPE_LOG_DIR");
  if (job.directory_is_temporary) return;
  const fs::path directory = rank_directory(job, generation.number, slot);
  set("TROUPE_LOG_DIR", directory.string());
  if (variables.contains("NCCL_DEBUG")) {
    variables.try_emplace("NCCL_DEBUG_FILE", (directory / "nccl.%h.%p.log").string());
  }
}

/// Each rank sees the one device of those visible that its number picks.
void show_one_gpu(int rank, Variables& variables) {
  std::string chosen = std::to_string(rank);
  if (const auto found = variables.find("CUDA_VISIBLE_DEVICES"); found != variables.end()) {
    std::string_view rest = found->second;
    for (int i = 0; i < rank && !rest.empty(); ++i) {
      rest.remove_prefix(std::min(rest.find(','), rest.size() - 1) + 1);
    }
    chosen = rest.substr(0, rest.find(','));
  }
  variables["CUDA_VISIBLE_DEVICES"] = chosen;
  variables["TROUPE_OWN_GPUS"] = "1";
}

/// Where a disk that is busy with checkpoints does not hold up those that wait for the file. It goes with
/// what this launcher leaves (mark_of()).
fs::path quick_file(const Job& job, const std::string& name) {
  const fs::path memory = "/dev/shm";
  if (::access(memory.c_str(), W_OK | X_OK) != 0) return job.directory / name;
  return memory / fmt::format("troupe-{}-{}", launcher_name(job), name);
}

fs::path generation_directory(const Job& job, int generation) {
  return job.directory / fmt::format("attempt_{}", generation);
}

}  // namespace

fs::path rank_directory(const Job& job, int generation, int slot) {
  return generation_directory(job, generation) / std::to_string(slot);
}

fs::path failure_file(const Job& job, int generation) {
  return generation_directory(job, generation) / "failure";
}

fs::path error_file(const Job& job, int generation, int slot) {
  return rank_directory(job, generation, slot) / "error.json";
}

fs::path progress_file(const Job& job) {
  return job.directory / "progress";
}

fs::path epoch_file(const Job& job) {
  return quick_file(job, "epoch");
}

fs::path flight_record(const Job& job) {
  return quick_file(job, "flight");
}

fs::path member_file(const Job& job, int slot) {
  return quick_file(job, fmt::format("member_{}", slot));
}

RankNumbers numbers_of(const Generation& generation, int rank) {
  const auto own = generation.seats.begin() + rank;
  const auto before = std::ranges::count(generation.seats.begin(), own, own->node, &actors::Seat::node);
  return {rank, static_cast<int>(before)};
}

int ranks_of_node(const Generation& generation, int node) {
  return static_cast<int>(std::ranges::count(generation.seats, node, &actors::Seat::node));
}

std::vector<std::string> rank_environment(const Job& job, const Generation& generation, ProcessPlace place,
                                          const std::vector<std::string>& inherited) {
  Variables variables;
  for (const std::string& assignment : inherited) {
    const std::size_t equals = assignment.find('=');
    if (equals != std::string::npos) variables[assignment.substr(0, equals)] = assignment.substr(equals + 1);
  }
  set_torchrun_variables(job, generation, place, variables);
  set_own_variables(job, generation, place.slot, variables);
  if (job.options.virtual_local_rank) show_one_gpu(place.slot, variables);

  std::vector<std::string> environment;
  environment.reserve(variables.size());
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  return environment;
}

std::vector<std::string> own_environment() {
  std::vector<std::string> assignments;
  for (char** entry = environ; *entry; ++entry) assignments.emplace_back(*entry);
  return assignments;
}

}  // namespace troupe::apps
