#include "actors/shell/rank_start.hpp"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "actors/world/host_identity.hpp"
#include "actors/world/own_address.hpp"
#include "actors/world/token_file.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "gpu/collective/flight_recorder.hpp"
#include "gpu/collective/nccl/environment.hpp"
#include "gpu/devices.hpp"
#include "gpu/host/memory.hpp"
#include "gpu/module_loading.hpp"
#include "posix/host_memory.hpp"

namespace troupe::actors {

core::Result<JobEnvironment> place_of_spare() {
  const auto as_first = [](const char* name) -> std::optional<std::string> {
    const auto value = process_variables()(name);
    return value == "spare" ? "0" : value;
  };
  return detect_environment(as_first);
}

core::Result<void> stand_by(const EpochFiles& files, JobEnvironment& environment) {
  TRY(files.declare_membership({environment.epoch, Membership::State::stands_by}));
  gpu::ReadyHostMemory memory;
  const auto told = [&](std::size_t bytes) {
    // Not at the cost of those who have a rank.
    memory.keep(bytes <= posix::memory_facts().available_bytes / 2 ? bytes : 0);
  };
  place_in(files, TRY(files.await_rank_after(environment.epoch, told)), environment);
  return {};
}

void place_in(const EpochFiles& files, const NextEpoch& next, JobEnvironment& environment) {
  const auto rank = files.rank_in(next);
  CHECK(rank.has_value(), "a process has a place in an epoch that names its slot");
  const auto& seats = next.seats;
  const auto own = seats.begin() + rank->value;
  environment.epoch = next.epoch;
  environment.control_host = next.control_host;
  environment.control_port = next.control_port;
  environment.rank = *rank;
  environment.world = {static_cast<std::int32_t>(seats.size())};
  const auto of_own_node = [&](auto end) {
    return std::ranges::count(seats.begin(), end, own->node, &Seat::node);
  };
  environment.local_rank = static_cast<int>(of_own_node(own));
  environment.local_world = static_cast<int>(of_own_node(seats.end()));
}

core::Result<JobToken> token_of(const JobEnvironment& environment, const EngineFacts& facts) {
  if (!environment.token.empty()) return token_from_hex(environment.token);
  if (const auto file = process_variables()("TROUPE_JOB_TOKEN_FILE"); file && !file->empty())
    return token_from_file(*file);
  // With torchrun's agent the ranks of one host meet on the loopback interface.
  const bool is_here = is_loopback(environment.control_host) ||
                       (!facts.agent_key.empty() && environment.local_world == environment.world.value);
  if (environment.world.value > 1 && !is_here) {
    return core::fail(
        core::Errc::invalid_argument,
        "the control network is at {}, beyond this host, and TROUPE_JOB_TOKEN is not set; give all "
        "ranks the same 64 hexadecimal digits in it, for example from `openssl rand -hex 32`, or in "
        "TROUPE_JOB_TOKEN_FILE the path of a file that all hosts share, which the first rank makes",
        environment.control_host);
  }
  // On one host without a token the job's name has to do: it keeps jobs apart but is not a secret.
  JobToken token{};
  for (std::size_t i = 0; i < token.size(); i += 8) {
    std::uint64_t word = core::hash64(environment.job, i);
    for (std::size_t byte = 0; byte < 8; ++byte) token[i + byte] = static_cast<std::byte>(word >> (8 * byte));
  }
  return token;
}

core::Result<std::string> device_of_rank(const std::string& name, const JobEnvironment& environment,
                                         const Logger& log) {
  if (name != "cuda") return name;
  // The trainer's kernels too: loading one may wait for a collective on the device, and that for a rank which
  // waits for the kernel's results.
  const bool has_peers = environment.world.value > 1 || slot_of(environment).ranks_of_host > 1;
  if (has_peers) ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  const auto gpus = static_cast<int>(TRY(gpu::list_cuda_devices()).size());
  if (has_peers && gpu::loads_kernels_lazily()) {
    log.warning(
        "kernels are loaded when they are first launched, and loading one may wait for a collective forever: "
        "set CUDA_MODULE_LOADING=EAGER before anything in this process calls CUDA");
  }
  const auto slot = slot_of(environment);
  const bool shares = ranks_share_gpus(environment, gpus);
  if (!shares && !environment.has_own_gpus && slot.of_host >= gpus) {
    return core::fail(
        core::Errc::unavailable,
        "expected a GPU for each process of this host, but there are {} and this is process {}, "
        "counted from 0; start fewer --spares, or fewer ranks on this host",
        gpus, slot.of_host);
  }
  if (shares) {
    if (slot.of_host == 0) {
      log.warning(
          "{} ranks share {} GPUs: tensors go over the loopback interface, which is for trying out and "
          "tests, "
          "not for speed; if each rank sees other GPUs, set TROUPE_OWN_GPUS=1",
          slot.ranks_of_host, gpus);
    }
    for (const auto& [variable, value] : gpu::several_ranks_on_one_gpu(slot.number))
      ::setenv(variable.c_str(), value.c_str(), 0);
  }
  return fmt::format("cuda:{}", slot.of_host % gpus);
}

core::Result<std::shared_ptr<gpu::FlightRecorder>> open_flight_record(const JobEnvironment& environment) {
  const auto prefix = process_variables()("TROUPE_FLIGHT_RECORD");
  if (!prefix || prefix->empty()) return std::shared_ptr<gpu::FlightRecorder>();
  auto host = host_identity();
  return gpu::FlightRecorder::open(
      {.path = fmt::format("{}.{}.{}", *prefix, environment.epoch.value, environment.rank.value),
       .job = environment.job,
       .epoch = environment.epoch,
       .rank = environment.rank,
       .world = environment.world,
       .host = host.id,
       .host_name = std::move(host.name)});
}

std::string owner_name(const JobEnvironment& environment) {
  if (environment.launcher == "troupe") return environment.job;
  if (environment.world.value == 1) return fmt::format("{}-{}", environment.job, ::getpid());
  const auto variables = process_variables();
  return fmt::format("{}-{}-{}", environment.job, variables("MASTER_ADDR").value_or(""),
                     variables("MASTER_PORT").value_or(""));
}

namespace {

constexpr std::string_view kRank = "{rank}";

std::string path_with_rank(const std::string& directory) {
  return directory + "/" + std::string(kRank);
}

}  // namespace

std::string directory_of_rank(std::string directory, core::Rank rank) {
  const auto number = std::to_string(rank.value);
  if (directory.find(kRank) == std::string::npos) directory = path_with_rank(directory);
  for (auto at = directory.find(kRank); at != std::string::npos; at = directory.find(kRank))
    directory.replace(at, kRank.size(), number);
  return directory;
}

std::vector<core::Rank> ranks_with_directories(const std::string& directory) {
  const auto pattern = directory.find(kRank) == std::string::npos ? path_with_rank(directory) : directory;
  // The first component with the number in it, and the directory in which such components are.
  const auto at = pattern.find(kRank);
  const auto begin = pattern.rfind('/', at) + 1;
  const auto end = std::min(pattern.find('/', at), pattern.size());
  const auto component = pattern.substr(begin, end - begin);
  const auto parent = begin == 0 ? std::string(".") : pattern.substr(0, begin);
  std::vector<core::Rank> ranks;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(parent, unreadable)) {
    const auto name = entry.path().filename().string();
    core::Rank rank;
    const auto digits = std::min(at - begin, name.size());
    std::from_chars(name.data() + digits, name.data() + name.size(), rank.value);
    const bool is_one = rank.value >= 0 && directory_of_rank(component, rank) == name;
    if (is_one && std::filesystem::is_directory(directory_of_rank(directory, rank), unreadable))
      ranks.push_back(rank);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace troupe::actors
