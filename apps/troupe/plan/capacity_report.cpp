#include "apps/troupe/plan/capacity_report.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "apps/command_line/json_text.hpp"
#include "apps/report/html.hpp"
#include "apps/report/page.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"
#include "core/options/options.hpp"

namespace troupe::apps {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kGib = 1024.0 * 1024 * 1024;

std::string gib(std::int64_t bytes) {
  return fmt::format("{:.3f}", static_cast<double>(bytes) / kGib);
}

std::string milliseconds(double seconds) {
  return fmt::format("{:.3f}", seconds * 1e3);
}

/// What people call the ranks that a communicator joins.
std::string_view axis_of(const core::Communicator& communicator) {
  switch (communicator.group) {
    case core::GroupKind::inter_instance:
      return "outer axis";
    case core::GroupKind::intra_dp_cp:
    case core::GroupKind::intra_edp:
      return "inner axis";
    case core::GroupKind::world:
      return "verdict";
    case core::GroupKind::tp:
      return "tensor";
    default:
      return "all ranks";
  }
}

Json json_of(const AxisTraffic& traffic) {
  return {{"axis", traffic.axis},
          {"members", traffic.members},
          {"link", traffic.within_node ? "inner" : "outer"},
          {"launches", traffic.launches},
          {"sent_bytes", traffic.bytes},
          {"seconds", traffic.seconds},
          {"exposed_seconds", traffic.seconds}};
}

/// What a rank's session moves, and then what its model does.
Json communicators_of(const Capacity& capacity) {
  Json communicators = Json::array();
  for (const auto& one : capacity.time.communicators) {
    communicators.push_back({{"axis", axis_of(one.communicator)},
                             {"group", core::name_of(one.communicator.group)},
                             {"link", one.within_node ? "inner" : "outer"},
                             {"launches", one.launches},
                             {"sent_bytes", one.bytes},
                             {"seconds", one.seconds},
                             {"exposed_seconds", one.exposed_seconds}});
  }
  for (const auto& one : capacity.traffic) communicators.push_back(json_of(one));
  return communicators;
}

Json json_of(const Capacity& capacity, bool knows_compute) {
  const auto& memory = capacity.memory;
  Json json{{"strategy", capacity.strategy},
            {"mesh", capacity.mesh()},
            {"parameters_bytes", memory.parameters},
            {"gradients_bytes", memory.gradients},
            {"main_bytes", memory.main},
            {"optimizer_bytes", memory.optimizer},
            {"parameter_pool_bytes", memory.parameter_pool},
            {"gradient_pool_bytes", memory.gradient_pool},
            {"staging_bytes", memory.staging},
            {"scratch_bytes", memory.scratch},
            {"checks_bytes", memory.checks},
            {"activations_bytes", capacity.activations},
            {"total_bytes", capacity.total()},
            {"fits", capacity.fits},
            {"sent_bytes", capacity.sent_bytes()},
            {"stage", capacity.stage},
            {"communication_seconds", capacity.communication_seconds()},
            {"communicators", communicators_of(capacity)}};
  if (knows_compute) {
    json["compute_seconds"] = capacity.time.compute_seconds;
    json["exposed_seconds"] = capacity.exposed_seconds();
  }
  return json;
}

/// What a rank of a GPU takes of its host at most, in pinned memory, where the job does not choose.
struct PinnedMemory {
  std::uint64_t saves = core::CheckpointOptions{}.staging_bytes;
  std::uint64_t restore = core::LoadOptions{}.staging_bytes;
  std::uint64_t local_saves = core::LocalTierOptions{}.staging_bytes;
};

Json json_of(const PinnedMemory& pinned) {
  return {{"saves", pinned.saves}, {"restore", pinned.restore}, {"local_saves", pinned.local_saves}};
}

Json json_of(const core::Link& link) {
  return {{"bytes_per_second", link.bytes_per_second}, {"latency_seconds", link.latency_seconds}};
}

Json json_of(const CapacityPlan& plan) {
  const auto& program = plan.arguments.program;
  Json json{{"elements", plan.elements},
            {"units", plan.units},
            {"ranks", program.ranks},
            {"rounds", program.rounds},
            {"context_parallel", program.context_parallel},
            {"context_pieces", program.pieces_of_lane()},
            {"tensor_parallel", program.tensor_parallel},
            {"sequence_parallel", program.sequence_parallel},
            {"tensor_slices", program.tensor_slices == 0 ? program.tensor_parallel : program.tensor_slices},
            {"expert_parallel", program.expert_parallel},
            {"expert_tensor_parallel",
             program.expert_tensor_parallel == 0 ? program.tensor_parallel : program.expert_tensor_parallel},
            {"stages", program.stages},
            {"world", program.ranks * program.tensor_parallel * program.stages},
            {"numerics", program.numerics},
            {"optimizer", program.optimizer},
            {"dtype", program.dtype},
            {"device_bytes", plan.device_bytes},
            {"pinned_host_bytes", json_of(PinnedMemory{})},
            {"node_ranks", plan.links.node_ranks},
            {"inner", json_of(plan.links.inner)},
            {"outer", json_of(plan.links.outer)},
            {"strategies", Json::array()},
            {"choose", nullptr}};
  if (!plan.model.empty()) {
    json["model"] = plan.model;
    json["sequences"] = plan.arguments.sequences;
    json["length"] = plan.arguments.length;
    json["recompute"] = plan.arguments.recompute;
  }
  if (plan.knows_compute()) json["compute_ms"] = plan.arguments.compute_ms;
  for (const auto& one : plan.found) json["strategies"].push_back(json_of(one, plan.knows_compute()));
  if (plan.chosen) json["choose"] = plan.found[*plan.chosen].strategy;
  return json;
}

std::string describe(const core::Link& link) {
  return fmt::format("{:g} GB/s, {:g} us", link.bytes_per_second / 1e9, link.latency_seconds * 1e6);
}

std::string sharing(const ProgramArguments& program) {
  const int cp = program.context_parallel;
  auto text = cp == 1 ? "" : fmt::format(", {} of them to a sequence", cp);
  if (program.own_pieces() > 1) text += fmt::format(", {} pieces of each on a rank", program.own_pieces());
  return text;
}

/// How ranks share the model.
std::string parts(const ProgramArguments& program) {
  const auto& [tensor, sequence, experts, cuts, stages, chunks] = program.axes();
  std::string text;
  if (tensor > 1)
    text += fmt::format("layers are shared by {}{}; ", tensor, sequence ? ", rows between them too" : "");
  if (program.tensor_slices > tensor)
    text += fmt::format("each layer is computed in {} slices; ", program.tensor_slices);
  if (stages > 1)
    text += fmt::format("{} stages{}, {}; ", stages, chunks > 1 ? fmt::format(" of {} chunks", chunks) : "",
                        program.schedule);
  if (experts > 1) text += fmt::format("experts are distributed over {}; ", experts);
  if (cuts > 0) text += fmt::format("each expert is cut over {}; ", cuts);
  if (text.empty()) return text;
  return text + fmt::format("{} ranks in all\n", program.ranks * tensor * stages);
}

std::string heading(const CapacityPlan& plan) {
  const auto& a = plan.arguments;
  auto text =
      fmt::format("{}: {:.3f} billion parameters in {} units; {} ranks of {} rounds{}, {}\n",
                  plan.model.empty() ? "equal units" : plan.model, static_cast<double>(plan.elements) / 1e9,
                  plan.units, a.program.ranks, a.program.rounds, sharing(a.program), a.program.numerics);
  if (plan.model.empty()) return text;
  return text + parts(a.program) +
         fmt::format("microbatches of {} x {} tokens{}\n", a.sequences, a.length,
                     a.recompute ? ", activations computed anew in backward" : "");
}

std::string memory_table(const CapacityPlan& plan) {
  constexpr auto kRow = "{:<8} {:>9} {:>10} {:>9} {:>9} {:>9} {:>8} {:>8} {:>11} {:>9}  {}\n";
  auto text = fmt::format(kRow, "GiB", "mesh", "parameters", "gradients", "main", "optimizer", "pools",
                          "staging", "activations", "total", "fits");
  for (const auto& one : plan.found) {
    const auto& memory = one.memory;
    fmt::format_to(std::back_inserter(text), kRow, one.strategy, one.mesh(), gib(memory.parameters),
                   gib(memory.gradients), gib(memory.main), gib(memory.optimizer), gib(memory.pools()),
                   gib(memory.staging + memory.scratch + memory.checks), gib(one.activations),
                   gib(one.total()), one.fits ? "yes" : "no");
  }
  return text;
}

std::string time_table(const CapacityPlan& plan) {
  constexpr auto kRow = "{:<8} {:>10} {:>6} {:>9} {:>10} {:>12} {:>12}\n";
  auto text = fmt::format(kRow, "per step", "axis", "link", "launches", "GiB sent", "ms", "ms exposed");
  for (const auto& one : plan.found) {
    for (const auto& c : one.time.communicators) {
      fmt::format_to(std::back_inserter(text), kRow, one.strategy, axis_of(c.communicator),
                     c.within_node ? "inner" : "outer", c.launches, gib(c.bytes), milliseconds(c.seconds),
                     plan.knows_compute() ? milliseconds(c.exposed_seconds) : "?");
    }
    for (const auto& axis : one.traffic) {
      fmt::format_to(std::back_inserter(text), kRow, one.strategy, axis.axis,
                     axis.within_node ? "inner" : "outer", axis.launches, gib(axis.bytes),
                     milliseconds(axis.seconds), milliseconds(axis.seconds));
    }
  }
  return text;
}

std::string verdict_of(const CapacityPlan& plan) {
  if (plan.chosen) {
    const auto& one = plan.found[*plan.chosen];
    if (!plan.knows_compute()) {
      return fmt::format("choose {}: of those that fit in {} it communicates least, {} ms per step",
                         one.strategy, plan.arguments.device_memory,
                         milliseconds(one.communication_seconds()));
    }
    return fmt::format("choose {}: of those that fit in {} it leaves least exposed, {} ms of a step of {} ms",
                       one.strategy, plan.arguments.device_memory, milliseconds(one.exposed_seconds()),
                       milliseconds(one.step_seconds()));
  }
  const Capacity* least = nullptr;
  for (const auto& one : plan.found) {
    if (least == nullptr || one.total() < least->total()) least = &one;
  }
  return fmt::format(
      "none fits in {}: {} takes least, {} GiB; use more ranks, shorter microbatches or --recompute",
      plan.arguments.device_memory, least->strategy, gib(least->total()));
}

std::string notes(const CapacityPlan& plan) {
  constexpr std::uint64_t kMib = std::uint64_t{1} << 20;
  const PinnedMemory pinned;
  return fmt::format(
      "Memory is that of the rank that needs most, without what driver and libraries take{}.\n"
      "A rank with a GPU pins at most {} MiB of its host's memory for saves, {} MiB for a restore, and {} "
      "MiB for local saves if there are any.\n"
      "Times assume rings without load: inner {}; outer {}; {} ranks per node.\n",
      plan.model.empty() ? ", and without activations" : "", pinned.saves / kMib, pinned.restore / kMib,
      pinned.local_saves / kMib, describe(plan.links.inner), describe(plan.links.outer),
      plan.links.node_ranks);
}

core::Result<void> write_page(const CapacityPlan& plan) {
  std::ofstream file(plan.arguments.html, std::ios::binary);
  file << capacity_page(plan);
  file.close();
  if (file) return {};
  return core::fail(core::Errc::io, "--html: cannot write {}: {}", core::quoted_excerpt(plan.arguments.html),
                    std::strerror(errno));
}

}  // namespace

std::string capacity_table(const CapacityPlan& plan) {
  return heading(plan) + "\n" + memory_table(plan) + "\n" + time_table(plan) + "\n" + verdict_of(plan) +
         "\n" + notes(plan);
}

std::string capacity_json(const CapacityPlan& plan) {
  return json_text(json_of(plan), -1);
}

std::string capacity_page(const CapacityPlan& plan) {
  auto data = json_of(plan);
  data["verdict"] = verdict_of(plan);
  data["notes"] = notes(plan);
  return fill_page(page::kCapacityHtml, page::kCapacity, json_text(data, -1));
}

core::Result<std::string> report_capacity(const CapacityArguments& arguments) {
  const auto plan = TRY(capacity_plan(arguments));
  if (!plan.arguments.html.empty()) TRY(write_page(plan));
  return plan.arguments.program.json ? capacity_json(plan) : capacity_table(plan);
}

}  // namespace troupe::apps
