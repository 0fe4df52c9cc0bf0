#include "actors/world/slurm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "actors/world/variables.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::actors::slurm {

using core::Result;

namespace {

/// The ranks of each node, in the order of SLURM_NODEID. SLURM_NTASKS_PER_NODE is only what was asked for,
/// and set only where somebody asked.
constexpr const char* kLists[] = {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"};
constexpr const char* kRequest = "SLURM_NTASKS_PER_NODE";

/// One entry of such a list, "4", or "8(x2)" for two nodes with eight ranks each.
struct Entry {
  std::int64_t ranks = 0;
  std::int64_t nodes = 1;
};

Result<Entry> parse_entry(std::string_view text, std::int64_t world) {
  Entry entry;
  const auto open = text.find("(x");
  if (open != std::string_view::npos) {
    const auto count = text.ends_with(')') ? text.substr(open + 2, text.size() - open - 3) : text;
    entry.nodes = TRY(core::parse_number<std::int64_t>(count, {1, world}));
  }
  entry.ranks = TRY(core::parse_number<std::int64_t>(text.substr(0, open), {1, world}));
  return entry;
}

/// The number of ranks of this node by a list such as "8(x2),4", where SLURM_NODEID counts: 8, 8, 4.
Result<int> read_list(const Variables& variables, const char* name, std::int64_t world) {
  const std::string list = variables(name).value_or("");
  std::vector<Entry> entries;
  std::int64_t nodes = 0;
  for (std::size_t start = 0; start <= list.size();) {
    const auto end = std::min(list.find(',', start), list.size());
    const auto entry = parse_entry(std::string_view(list).substr(start, end - start), world);
    if (!entry) {
      return core::fail(entry.error().code, "{}: expected numbers of ranks such as 8(x2),4, found {}: {}",
                        name, core::quoted_excerpt(list), entry.error().message);
    }
    entries.push_back(*entry);
    nodes += entry->nodes;
    start = end + 1;
  }
  const auto node = TRY(read_number(variables, "SLURM_NODEID", nodes == 1 ? 0 : -1, 0, INT32_MAX));
  std::int64_t first = 0;
  for (const Entry& entry : entries) {
    if (node >= first && node < first + entry.nodes) return static_cast<int>(entry.ranks);
    first += entry.nodes;
  }
  return core::fail(core::Errc::invalid_argument,
                    "{}={} is for {} nodes, and SLURM_NODEID{}; start all ranks with one srun", name, list,
                    nodes, node < 0 ? " is not set" : fmt::format(" is {}", node));
}

/// Slurm describes a step to the tasks that srun starts, and only the job to a batch script.
bool is_step(const Variables& variables) {
  const auto is_set = [&](const char* name) { return has_value(variables, name); };
  return is_set("SLURM_STEP_ID") || is_set("SLURM_STEPID") || is_set(kLists[0]) || !is_set("SLURM_JOB_ID");
}

Result<std::int64_t> nodes_of_step(const Variables& variables) {
  const auto of_job = TRY(read_number(variables, "SLURM_NNODES", 1, 1, INT32_MAX));
  return read_number(variables, "SLURM_STEP_NUM_NODES", of_job, 1, INT32_MAX);
}

}  // namespace

Result<std::int64_t> tasks_of_step(const Variables& variables) {
  constexpr std::int64_t kMost = 1 << 20;
  const auto of_job = TRY(read_number(variables, "SLURM_NTASKS", -1, 1, kMost));
  const auto of_step = TRY(read_number(variables, "SLURM_STEP_NUM_TASKS", -1, 1, kMost));
  if (of_step > 0) return of_step;
  return is_step(variables) ? of_job : 1;
}

Result<int> tasks_of_node(const Variables& variables, std::int64_t world) {
  if (world == 1) return 1;
  for (const char* list : kLists) {
    if (has_value(variables, list)) return read_list(variables, list, world);
  }
  const auto nodes = TRY(nodes_of_step(variables));
  if (nodes > 1 && !has_value(variables, kRequest)) {
    return core::fail(
        core::Errc::invalid_argument,
        "SLURM_NNODES is {}, and none of {}, {} and {} says how many ranks this node has; start "
        "all ranks with srun, and give it --ntasks-per-node",
        nodes, kLists[0], kLists[1], kRequest);
  }
  return static_cast<int>(TRY(read_number(variables, kRequest, world, 1, world)));
}

Result<std::string> first_host(std::string_view list) {
  std::string host;
  bool reads_well = true;
  for (std::size_t at = 0; reads_well && at < list.size() && list[at] != ',';) {
    if (list[at] != '[') {
      host += list[at++];
      continue;
    }
    // "003" from "[003-005,009]".
    const auto close = std::min(list.find(']', at), list.size());
    const auto numbers = list.substr(at + 1, close - at - 1);
    const auto first = numbers.substr(0, numbers.find_first_of("-,"));
    reads_well = close < list.size() && !first.empty();
    host += first;
    at = close + 1;
  }
  if (reads_well && !host.empty()) return host;
  return core::fail(core::Errc::invalid_argument, "expected a list of hosts such as n[1-2],x, found {}",
                    core::quoted_excerpt(list));
}

Result<std::string> host_of_first_task(const Variables& variables) {
  if (TRY(nodes_of_step(variables)) == 1) return std::string("127.0.0.1");
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    if (!has_value(variables, name)) continue;
    auto host = first_host(*variables(name));
    if (!host) return core::fail(host.error().code, "{}: {}", name, host.error().message);
    return host;
  }
  return core::fail(core::Errc::invalid_argument,
                    "neither MASTER_ADDR nor SLURM_STEP_NODELIST says where rank 0 runs; set MASTER_ADDR");
}

std::string name_of_job(const Variables& variables) {
  const auto step = variables("SLURM_STEP_ID");
  return fmt::format("slurm_{}_{}", variables("SLURM_JOB_ID").value_or("0"),
                     step ? *step : variables("SLURM_STEPID").value_or("0"));
}

}  // namespace troupe::actors::slurm
