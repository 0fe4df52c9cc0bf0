#include "apps/troupe/plan/capacity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "apps/pipeline/runner.hpp"
#include "apps/troupe/plan/parameters.hpp"
#include "apps/troupe/plan/quantities.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"
#include "core/program/job_programs.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;

/// A node of eight H100: NVLink, and one 400 Gb/s adapter for each GPU.
constexpr core::Link kInner{400e9, 5e-6};
constexpr core::Link kOuter{50e9, 10e-6};
constexpr int kNodeRanks = 8;

constexpr std::int64_t kDefaultLength = 4096;
constexpr std::int64_t kMostRanks = std::int64_t{1} << 20;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;

struct Wanted {
  std::string strategy;
  int outer = 1;
};

std::vector<Wanted> wanted(const CapacityArguments& arguments) {
  const int outer = arguments.program.outer;
  const auto& names = arguments.strategies;
  std::vector<Wanted> found;
  if (names.empty() || std::find(names.begin(), names.end(), "all") != names.end()) {
    found = {{"ddp"}, {"zero1"}, {"zero2"}, {"zero3"}};
    if (outer > 1) found.insert(found.end(), {{"hsdp", outer}, {"hfsdp", outer}});
    return found;
  }
  for (const auto& name : names) found.push_back({name, outer});
  return found;
}

Result<void> take_mesh(CapacityArguments& arguments) {
  if (arguments.mesh.empty()) return {};
  const auto sizes = parse_shape(arguments.mesh);
  const bool right = sizes && sizes->size() <= 2 && sizes->front() >= 1 && sizes->back() >= 1 &&
                     sizes->front() <= kMostRanks && sizes->back() <= kMostRanks &&
                     (sizes->size() == 1 || sizes->front() * sizes->back() <= kMostRanks);
  if (!right) {
    return core::fail(
        Errc::invalid_argument,
        "--mesh: expected ranks, or those of the outer and the inner axis as in 2x4, at most {} ranks, "
        "found {}",
        kMostRanks, core::quoted_excerpt(arguments.mesh));
  }
  arguments.program.outer = sizes->size() == 2 ? static_cast<int>(sizes->front()) : 1;
  arguments.program.ranks = arguments.program.outer * static_cast<int>(sizes->back());
  return {};
}

Result<core::Links> links_of(const CapacityArguments& arguments) {
  const auto& program = arguments.program;
  const int inner = program.ranks / std::max(program.outer, 1) * program.tensor_parallel;
  core::Links links{kInner, kOuter, arguments.node_ranks.value_or(program.outer > 1 ? inner : kNodeRanks),
                    program.tensor_parallel};
  for (const auto& text : arguments.links) {
    const auto named = parse_link(text);
    if (!named) return core::fail(Errc::invalid_argument, "--link: {}", named.error().message);
    (named->first == "inner" ? links.inner : links.outer) = named->second;
  }
  return links;
}

Result<CapacityStage> stage_of(const PlannedModel& model, const CapacityPlan& plan, int stage) {
  const auto& program = plan.arguments.program;
  CapacityStage found{.stage = stage};
  found.tensors = TRY(core::stage_tensors(model.config, model.tensors, program.axes(), stage));
  if (program.stages == 1) {
    found.activations = core::activation_bytes(model.config, plan.microbatch);
  } else {
    const auto slots = StageRunner(TRY(schedule_of(program)), stage).slots();
    found.activations = core::activation_bytes(model.config, plan.microbatch,
                                               {found.tensors.layers, slots.activations, slots.input});
  }
  found.activations *= program.own_pieces();
  return found;
}

/// Whether two stages plan the same memory: most stages of a deep pipeline do.
bool holds_the_same(const core::StageTensors& a, const core::StageTensors& b) {
  return a.units == b.units &&
         std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                    [](const core::RankTensor& one, const core::RankTensor& other) {
                      return one.shape == other.shape && one.whole.unit == other.whole.unit;
                    });
}

/// How many slices of each layer a rank computes.
Result<std::int64_t> slices_of_rank(const PlannedModel& model, const ProgramArguments& program) {
  if (program.tensor_slices == 0) return 1;
  const auto& config = model.config.transformer;
  const auto heads = config.num_query_groups.value_or(config.num_attention_heads);
  if (heads % program.tensor_slices != 0) {
    return core::fail(Errc::invalid_argument,
                      "--tensor-slices {} do not divide {} heads with keys of their own",
                      program.tensor_slices, heads);
  }
  const int each = program.tensor_slices / program.tensor_parallel;
  const bool is_fair = each * program.tensor_parallel == program.tensor_slices;
  if (is_fair && (program.tensor_parallel == 1 || (each & (each - 1)) == 0)) return each;
  return core::fail(
      Errc::invalid_argument,
      "--tensor-slices {} for {} tensor-parallel ranks: each has 1, 2, 4, 8 ... of them; choose "
      "--tensor-slices {}, or other ranks",
      program.tensor_slices, program.tensor_parallel, 2 * program.tensor_parallel);
}

Result<void> take_model(const PlannedModel& model, CapacityPlan& plan) {
  auto& arguments = plan.arguments;
  const auto longest = model.config.builder.max_sequence_length;
  if (arguments.length == 0) arguments.length = std::clamp<std::int64_t>(longest, 1, kDefaultLength);
  if (arguments.length > kMostTokens / arguments.sequences) {
    return core::fail(Errc::invalid_argument,
                      "--sequences {} of --length {}: a microbatch has {} tokens at most",
                      arguments.sequences, arguments.length, kMostTokens);
  }
  const auto& shared = arguments.program;
  const std::int64_t parts = std::int64_t{shared.tensor_parallel} * shared.stages;
  if (shared.ranks * parts > kMostRanks) {
    return core::fail(Errc::invalid_argument,
                      "{} ranks for each of {} parts of the model are more than {}; use fewer of --ranks, "
                      "--tensor-parallel or --stages",
                      shared.ranks, parts, kMostRanks);
  }
  const int pieces = arguments.program.pieces_of_lane();
  if (pieces > 1 && arguments.length % (2 * pieces) != 0) {
    return core::fail(Errc::invalid_argument,
                      "--context-{} {} cuts a sequence in {} runs of tokens, which do not divide --length {}",
                      arguments.program.context_pieces > 0 ? "pieces" : "parallel", pieces, 2 * pieces,
                      arguments.length);
  }
  plan.model = fmt::format("{} of {} layers", core::facts_of(model.config.architecture).name,
                           model.config.transformer.num_layers);
  plan.elements = model.elements();
  for (const auto& tensor : model.tensors) plan.units = std::max(plan.units, tensor.unit.value_or(-1) + 1);
  const auto dtype = TRY(core::dtype_from_name(arguments.program.dtype));
  const auto slices = TRY(slices_of_rank(model, arguments.program));
  plan.microbatch = {.sequences = arguments.sequences,
                     .length = arguments.length,
                     .dtype = dtype,
                     .recompute = arguments.recompute,
                     .keep_probabilities = arguments.keep_probabilities,
                     .context_parallel = pieces,
                     .tensor_parallel = arguments.program.tensor_parallel,
                     .sequence_parallel = arguments.program.sequence_parallel,
                     .slices = slices};
  for (int stage = 0; stage < arguments.program.stages; ++stage) {
    auto found = TRY(stage_of(model, plan, stage));
    const bool adds_nothing = std::any_of(plan.stages.begin(), plan.stages.end(), [&](const auto& other) {
      return holds_the_same(other.tensors, found.tensors) &&
             other.activations.total() >= found.activations.total();
    });
    if (!adds_nothing) plan.stages.push_back(std::move(found));
  }
  return {};
}

/// With the rank that needs most of the strategy's memory.
Result<Capacity> capacity_of(const CapacityPlan& plan, const Wanted& one, const core::ProgramInputs& inputs,
                             std::int64_t units) {
  const auto& arguments = plan.arguments.program;
  const auto job = TRY(core::plan_all(inputs));
  Capacity capacity{.strategy = one.strategy, .ranks = arguments.ranks, .outer = one.outer};
  const core::Program* largest = nullptr;
  for (const auto& program : job.programs) {
    const auto memory = core::memory_of(program);
    if (largest != nullptr && memory.total() <= capacity.memory.total()) continue;
    capacity.memory = memory;
    largest = &program;
  }
  const double round_seconds = plan.arguments.compute_ms / 1e3 * static_cast<double>(units);
  capacity.time = core::step_time(*largest, plan.links, round_seconds);
  return capacity;
}

/// And in a pipeline the stage.
Result<Capacity> capacity_of(const CapacityPlan& plan, const std::optional<PlannedModel>& model,
                             const Wanted& one) {
  auto arguments = plan.arguments.program;
  arguments.strategy = one.strategy;
  arguments.outer = one.outer;
  std::optional<Capacity> most;
  for (const auto& stage : plan.stages) {
    arguments.stage = stage.stage;
    auto found = TRY(capacity_of(plan, one, TRY(program_inputs(arguments, stage.tensors)),
                                 stage.tensors.units.back().second));
    found.stage = stage.stage;
    found.activations = stage.activations.total();
    found.traffic = traffic_of(model->config, plan.microbatch, arguments.axes(),
                               {arguments.ranks, arguments.rounds, arguments.numerics == "ordered",
                                arguments.own_pieces(), stage.tensors.layers},
                               plan.links);
    if (!most || found.total() > most->total()) most = std::move(found);
  }
  if (!model) most = TRY(capacity_of(plan, one, TRY(program_inputs(arguments)), plan.units));
  most->fits = most->total() <= plan.device_bytes;
  return *std::move(most);
}

std::optional<std::size_t> choose(const CapacityPlan& plan) {
  const auto cost = [&](std::size_t i) {
    const auto& one = plan.found[i];
    return std::tuple(plan.knows_compute() ? one.exposed_seconds() : one.communication_seconds(),
                      one.total());
  };
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < plan.found.size(); ++i) {
    if (plan.found[i].fits && (!best || cost(i) < cost(*best))) best = i;
  }
  return best;
}

}  // namespace

std::int64_t Capacity::sent_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& one : time.communicators) bytes += one.bytes;
  for (const auto& one : traffic) bytes += one.bytes;
  return bytes;
}

namespace {

double seconds_of(const std::vector<AxisTraffic>& traffic) {
  double seconds = 0;
  for (const auto& one : traffic) seconds += one.seconds;
  return seconds;
}

}  // namespace

double Capacity::communication_seconds() const {
  return time.communication_seconds() + seconds_of(traffic);
}

double Capacity::exposed_seconds() const {
  return time.exposed_seconds() + seconds_of(traffic);
}

double Capacity::step_seconds() const {
  return time.step_seconds + seconds_of(traffic);
}

std::string Capacity::mesh() const {
  return outer > 1 ? fmt::format("{}x{}", outer, ranks / outer) : fmt::format("{}", ranks);
}

Result<CapacityPlan> capacity_plan(CapacityArguments arguments) {
  TRY(take_mesh(arguments));
  CapacityPlan plan{.arguments = std::move(arguments)};
  plan.links = TRY(links_of(plan.arguments));
  const auto memory = parse_bytes(plan.arguments.device_memory);
  if (!memory) return core::fail(Errc::invalid_argument, "--device-memory: {}", memory.error().message);
  plan.device_bytes = *memory;
  const auto& program = plan.arguments.program;
  plan.units = program.units;
  plan.elements = program.units * program.unit_elements + program.resident_elements;
  std::optional<PlannedModel> model;
  if (!plan.arguments.model.empty()) {
    auto read = read_planned_model(plan.arguments.model);
    if (!read) return core::fail(read.error().code, "--model: {}", read.error().message);
    model = *std::move(read);
    TRY(take_model(*model, plan));
  }
  for (const auto& one : wanted(plan.arguments)) plan.found.push_back(TRY(capacity_of(plan, model, one)));
  plan.chosen = choose(plan);
  return plan;
}

}  // namespace troupe::apps
