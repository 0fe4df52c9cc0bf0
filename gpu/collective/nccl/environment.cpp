#include "gpu/collective/nccl/environment.hpp"

#include <fmt/format.h>

#include <cstdlib>

namespace troupe::gpu {
namespace {

struct Override {
  const char* name;
  const char* consequence;
};

// Variables that NCCL ranks above the configuration of a communicator.
constexpr Override kOverrides[] = {
    {"NCCL_COMM_BLOCKING", "calls may block for ever when a peer dies: unset it"},
    {"NCCL_COMM_SPLIT_SHARE_RESOURCES", "aborting one group may take others with it: unset it"},
    {"NCCL_COMM_SHRINK_SHARE_RESOURCES", "aborting one group may take others with it: unset it"},
    {"NCCL_CTA_POLICY", "with policy 2 collectives cannot be aborted: use 0 or 1"},
    {"NCCL_MIN_CTAS", "it goes before the limits that Troupe sets"},
    {"NCCL_MAX_CTAS", "it goes before the limits that Troupe sets"},
    {"NCCL_COMM_ID", "all groups meet at one address, and several cannot be made at once: unset it"},
    {"NCCL_LEGACY_CUDA_REGISTER", "memory is registered in a way that aborts do not undo: unset it"},
    {"NCCL_LAUNCH_RACE_FATAL", "launches from two threads are no longer refused: unset it"},
};

std::optional<std::string> look_up_here(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

}  // namespace

EnvironmentVariables nccl_environment(const LookUpVariable& look_up) {
  EnvironmentVariables variables;
  for (const char* const name : {"NCCL_LAUNCH_ORDER_IMPLICIT", "NCCL_SET_THREAD_NAME"}) {
    if (!look_up(name)) variables.emplace_back(name, "1");
  }
  return variables;
}

std::vector<std::string> nccl_overrides(const LookUpVariable& look_up) {
  std::vector<std::string> sentences;
  for (const Override& each : kOverrides) {
    if (const auto value = look_up(each.name)) {
      sentences.push_back(fmt::format("{}={} is set: {}", each.name, *value, each.consequence));
    }
  }
  const auto order = look_up("NCCL_LAUNCH_ORDER_IMPLICIT");
  if (order && *order == "0") {
    sentences.push_back(
        "NCCL_LAUNCH_ORDER_IMPLICIT=0 is set: two groups of one device may wait for each other "
        "for ever: unset it");
  }
  return sentences;
}

std::vector<std::string> prepare_nccl_environment() {
  for (const auto& [name, value] : nccl_environment(look_up_here)) setenv(name.c_str(), value.c_str(), 0);
  return nccl_overrides(look_up_here);
}

EnvironmentVariables several_ranks_on_one_gpu(int rank, const std::string& log_directory) {
  EnvironmentVariables variables{
      {"NCCL_HOSTID", fmt::format("troupe-host-{}", rank)},
      // Kernels loaded on first use would wait for a device on which a collective spins.
      {"CUDA_MODULE_LOADING", "EAGER"},
      // Only sockets on the loopback interface; the second '=' requires exactly this name.
      {"NCCL_NET", "Socket"},
      {"NCCL_IB_DISABLE", "1"},
      {"NCCL_SOCKET_IFNAME", "=lo"},
      {"NCCL_P2P_DISABLE", "1"},
      {"NCCL_SHM_DISABLE", "1"},
      {"NCCL_MNNVL_ENABLE", "0"},
      {"NCCL_NVLS_ENABLE", "0"},
      {"NCCL_CUMEM_ENABLE", "0"},
      {"NCCL_NET_GDR_LEVEL", "LOC"},
      // Little memory and few blocks, as there are many ranks, and one algorithm.
      {"NCCL_MAX_CTAS", "2"},
      {"NCCL_BUFFSIZE", "1048576"},
      {"NCCL_ALGO", "Ring"},
      {"NCCL_PROTO", "Simple"},
      // All ranks would use the same address for NCCL's own monitor.
      {"NCCL_RAS_ENABLE", "0"},
      {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"},
      {"NCCL_SET_THREAD_NAME", "1"},
      {"NCCL_DEBUG", "WARN"},
  };
  if (!log_directory.empty()) {
    variables.emplace_back("NCCL_DEBUG_FILE", fmt::format("{}/nccl.rank{}.%h.%p.log", log_directory, rank));
  }
  return variables;
}

}  // namespace troupe::gpu
