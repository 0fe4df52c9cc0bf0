#include "actors/session/c/options.hpp"

#include <chrono>
#include <limits>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/number.hpp"
#include "core/optimizer/optimizer.hpp"
#include "core/options/option_value.hpp"
#include "gpu/collective/open.hpp"
#include "gpu/devices.hpp"

namespace troupe::actors {

namespace {

using core::choice;
using core::flag;
using core::named;
using core::number;
using core::OptionValue;
using core::Result;
using core::text;

constexpr auto kMost = std::numeric_limits<std::int64_t>::max();

struct Option {
  std::string_view name;
  std::string_view meaning;
  OptionValue value;
};

// The ways to set what `target` is. It outlives what they return.

/// Separated by commas.
OptionValue texts(std::vector<std::string>& target) {
  return {.set = [&target](std::string_view value) -> Result<void> {
    target.clear();
    while (!value.empty()) {
      const auto end = std::min(value.find(','), value.size());
      if (end == 0) return core::fail(core::Errc::invalid_argument, "a name between two commas is empty");
      target.emplace_back(value.substr(0, end));
      value.remove_prefix(std::min(end + 1, value.size()));
    }
    return {};
  }};
}

OptionValue mebibytes(std::uint64_t& target) {
  return {.set = [&target](std::string_view value) -> Result<void> {
    target = TRY(core::parse_number<std::uint64_t>(value, {1, std::uint64_t{1} << 30})) << 20;
    return {};
  }};
}

OptionValue seconds(std::chrono::nanoseconds& target) {
  return {.set = [&target](std::string_view value) -> Result<void> {
    const std::chrono::duration<double> time(TRY(core::parse_number<double>(value, {0.001, 1e6})));
    target = std::chrono::duration_cast<std::chrono::nanoseconds>(time);
    return {};
  }};
}

/// With commas between them.
OptionValue units(std::vector<core::UnitIndex>& target) {
  return {.set = [&target](std::string_view value) -> Result<void> {
    std::vector<core::UnitIndex> read;
    for (bool more = true; more;) {
      const auto comma = value.find(',');
      more = comma != std::string_view::npos;
      read.push_back({TRY(core::parse_number<std::uint32_t>(value.substr(0, comma), {0, 1 << 20}))});
      if (more) value.remove_prefix(comma + 1);
    }
    target = std::move(read);
    return {};
  }};
}

Result<void> is_given(std::string_view value) {
  if (!value.empty()) return {};
  return core::fail(core::Errc::invalid_argument, "expected a directory, found an empty text");
}

std::vector<Option> options_of(core::OptimizerOptions& optimizer) {
  using core::MuonScale;
  return {
      {"optimizer", "sgd, adam, adamw, lion or muon", named(optimizer.kind, core::optimizer_from_name)},
      {"beta1", "beta1 of Adam and Lion", number(optimizer.beta1, {0, 1})},
      {"beta2", "beta2 of Adam and Lion", number(optimizer.beta2, {0, 1})},
      {"epsilon", "epsilon of Adam and Muon", number(optimizer.epsilon, {0, 1})},
      {"weight-decay", "weight decay of the optimizer", number(optimizer.weight_decay, {0, 1e30})},
      {"momentum", "momentum of SGD and Muon", number(optimizer.momentum, {0, 1})},
      {"nesterov", "Nesterov momentum of Muon: true or false", flag(optimizer.nesterov)},
      {"newton-schulz-steps", "iterations by which Muon makes a matrix orthogonal",
       number(optimizer.newton_schulz_steps, {1, 100})},
      {"muon-scale", "what Muon multiplies the learning rate by: original or match_rms_adamw",
       choice(optimizer.scale,
              {{"original", MuonScale::original}, {"match_rms_adamw", MuonScale::match_rms_adamw}})},
  };
}

std::vector<Option> options_of(core::ParameterGroup& group) {
  auto options = options_of(group.optimizer);
  options.push_back({"learning-rate-factor", "what the learning rate of every step is multiplied by",
                     number(group.learning_rate_factor, {0, 1e30})});
  return options;
}

std::vector<Option> options_of(core::LossScaling& scaling) {
  using core::LossScale;
  return {
      {"loss-scaling", "what losses are multiplied by before backward: none, fixed or dynamic",
       choice(scaling.kind,
              {{"none", LossScale::none}, {"fixed", LossScale::fixed}, {"dynamic", LossScale::dynamic}})},
      {"loss-scale", "the loss scale; a dynamic one begins with it", number(scaling.scale, {0, 3e38})},
      {"loss-scale-growth", "factor by which a dynamic loss scale grows", number(scaling.growth, {1, 1e6})},
      {"loss-scale-interval", "steps in a row with finite gradients after which it grows",
       number(scaling.interval, {1, 1 << 30})},
      {"loss-scale-backoff", "factor by which NaN or Inf gradients reduce it",
       number(scaling.backoff, {0, 1})},
      {"loss-scale-minimum", "the least that it becomes", number(scaling.minimum, {0, 3e38})},
      {"loss-scale-hysteresis", "steps with NaN or Inf gradients, since it last grew, that reduce it",
       number(scaling.hysteresis, {1, 1 << 30})},
  };
}

std::vector<Option> options_of_recovery(troupe_options& options) {
  auto& checkpoint = options.session.checkpoint;
  auto& local = options.session.local;
  using core::LoadMode;
  using core::WhenBusy;
  return {
      {"checkpoints", "directory of checkpoints; without it nothing can be saved",
       text(options.world.checkpoint_directory, is_given)},
      {"keep-last", "number of newest checkpoints to keep; 0: all",
       number(checkpoint.retention.keep_last, {0, 1 << 30})},
      {"keep-every", "interval, in steps, of checkpoints that are also kept; 0: none",
       number(checkpoint.retention.keep_every, {0, kMost})},
      {"staging-mebibytes", "MiB of staging memory for saves", mebibytes(checkpoint.staging_bytes)},
      {"when-busy", "a save that begins while another is not over: queue or refuse",
       choice(checkpoint.when_busy, {{"queue", WhenBusy::queue}, {"refuse", WhenBusy::refuse}})},
      {"load", "how ranks that need the same bytes get them: automatic, read or exchange",
       choice(
           checkpoint.load.mode,
           {{"automatic", LoadMode::automatic}, {"read", LoadMode::read}, {"exchange", LoadMode::exchange}})},
      {"local-checkpoints", "directory on this rank's node for local saves; {rank} stands for the rank",
       text(options.world.local_checkpoint_directory, is_given)},
      {"replication-factor", "ranks that keep copies of each other's local saves",
       number(local.factor, {1, 1 << 20})},
      {"replication-jump", "distance between these ranks", number(local.jump, {1, 1 << 20})},
      {"local-keep", "number of newest local saves to keep", number(local.keep, {1, 1 << 20})},
      {"stays",
       "this process stays when another rank is lost, and calls troupe_session_join_again(): true or false",
       flag(options.world.stays)},
  };
}

/// What is done about gradients at the end of a step.
std::vector<Option> options_of_gradients(core::TrainingOptions& training) {
  using core::UnusedParameters;
  return {
      {"f32-gradients",
       "with gradients-in-parameter-dtype: names of parameters, as in *.norm.*,embedding, whose gradients "
       "are f32",
       texts(training.f32_gradients)},
      {"average-in-collective",
       "fast numerics: collectives divide by their members what they add: true or false",
       flag(training.average_in_collective)},
      {"unused-parameters", "what to do about a parameter without a gradient: refuse or zeros",
       choice(training.unused_parameters,
              {{"refuse", UnusedParameters::refuse}, {"zeros", UnusedParameters::zeros}})},
      {"large-gradient-factor",
       "warn of gradients whose norm is above so many times the largest of the first steps; 0: never",
       number(training.large_gradient_factor, {0, 1e30})},
      {"clip-norm", "global L2 norm to clip gradients at; 0: none", number(training.clip_norm, {0, 1e30})},
  };
}

std::vector<Option> options_of(troupe_options& options) {
  auto& [world, session, parameters] = options;
  auto& training = session.training;
  std::vector<Option> all{
      {"strategy", "what is sharded: ddp, zero1, zero2, zero3, hsdp or hfsdp",
       named(training.strategy, core::strategy_from_name)},
      {"numerics", "order of sums: ordered (the same bits for any number of ranks) or fast",
       named(training.numerics, core::numerics_from_name)},
      {"lanes",
       "logical data-parallel workers; 0: one per data-parallel rank, or per group of ranks that share lanes",
       number(training.lanes, {0, 1 << 20})},
      {"microbatches", "microbatches per lane and step", number(training.microbatches, {1, 1 << 20})},
      {"overlap", "collectives run during backward and forward: true or false", flag(training.overlap)},
      {"bucket-elements", "elements after which a bucket closes",
       number(training.bucket_elements, {1, kMost})},
      {"gradients-in-parameter-dtype", "fast numerics: gradients are not f32 but of the parameters' dtype",
       flag(training.gradients_in_parameter_dtype)},
      {"average",
       "true: gradients are averaged over lanes and microbatches, or by lanes' weights; false: summed",
       flag(training.average)},
      {"loss-divisor", "for lanes with weights: what the trainer divides losses and their gradients by",
       number(training.loss_divisor, {1e-30, 1e30})},
      {"optimizer-instances", "replicas of the sharded optimizer; for hsdp and hfsdp the outer axis",
       number(training.optimizer_instances, {1, 1 << 20})},
      {"tensor-parallel", "ranks that share each layer; the group tp",
       number(training.tensor_parallel, {1, 1 << 20})},
      {"pipeline-parallel", "stages that layers are distributed over; the group pp",
       number(training.pipeline_parallel, {1, 1 << 20})},
      {"context-parallel", "ranks that share each lane, for example its sequences; the group cp",
       number(training.context_parallel, {1, 1 << 20})},
      {"expert-parallel", "data-parallel ranks that experts are distributed over; the group ep",
       number(training.expert_parallel, {1, 1 << 20})},
      {"expert-tensor-parallel", "ranks that each expert is cut over; 0: tensor-parallel",
       number(training.expert_tensor_parallel, {0, 1 << 20})},
      {"gathered-units", "units whose full parameters, and full gradients, may exist at once",
       number(training.gathered_units, {1, 1 << 20})},
      {"forward-order", "order in which forward uses units, as in 2,0,1; by default ascending",
       units(session.order.forward)},
      {"backward-order", "order in which backward uses units; by default the reverse of forward",
       units(session.order.backward)},
      {"staging-elements", "elements that a rank may receive at once when gradients are exchanged; 0: all",
       number(training.staging_elements, {0, kMost})},
      {"wire-dtype", "dtype in which gradients are sent: f32 or bf16",
       named(training.wire_dtype, core::dtype_from_name)},
      {"device", "where tensors are: host, cuda or cuda:<index>", text(world.device, gpu::check_device_name)},
      {"collectives", "back-end: automatic, shared_memory, tcp or nccl",
       text(world.collectives, gpu::check_collectives)},
      {"register-memory", "NCCL moves values without copies of its own where it can: true or false",
       flag(world.register_memory)},
      {"first-values",
       "values of parameters before the first step, where several ranks keep the same: compare (they must be "
       "equal) or broadcast (those of the first)",
       choice(session.first_values,
              {{"compare", FirstValues::compare}, {"broadcast", FirstValues::broadcast}})},
      {"compare-replicas-every",
       "steps between comparisons of the parameters that several ranks keep, which are made before saves "
       "too; 0: "
       "none",
       number(session.compare_replicas_every, {0, 1 << 30})},
      {"join-seconds", "seconds after which a job that has not formed ends", seconds(session.join_deadline)},
      {"step-seconds", "seconds after which a collective counts as hung", seconds(session.step_deadline)},
  };
  for (auto&& more : {options_of_gradients(training), options_of(training.optimizer),
                      options_of(training.loss_scaling), options_of_recovery(options)})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// False if there is none of that name.
Result<bool> set_one_of(const std::vector<Option>& options, std::string_view name, std::string_view value) {
  for (const Option& option : options) {
    if (option.name != name) continue;
    if (auto set = option.value.set(value); !set)
      return core::fail(set.error().code, "{}: {}", name, set.error().message);
    return true;
  }
  return false;
}

}  // namespace

Result<void> set_option(troupe_options& options, std::string_view name, std::string_view value) {
  if (TRY(set_one_of(options_of(options), name, value))) return {};
  return core::fail(core::Errc::invalid_argument,
                    "there is no option {}; troupe_option_names() lists them, for example lanes",
                    core::quoted_excerpt(name));
}

Result<void> set_option(core::ParameterGroup& group, std::string_view name, std::string_view value) {
  const auto options = options_of(group);
  if (TRY(set_one_of(options, name, value))) return {};
  std::string names;
  for (const Option& option : options) names += (names.empty() ? "" : ", ") + std::string(option.name);
  return core::fail(core::Errc::invalid_argument, "groups of parameters have no option {}; they have {}",
                    core::quoted_excerpt(name), names);
}

const std::string& option_names() {
  static const std::string names = [] {
    std::string text;
    troupe_options defaults;
    for (const Option& option : options_of(defaults))
      text += fmt::format("{}: {}\n", option.name, option.meaning);
    return text;
  }();
  return names;
}

}  // namespace troupe::actors
