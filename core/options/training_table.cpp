#include "core/options/training_table.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::core {

namespace {

using Rows = std::vector<CommonOption>;

constexpr auto kMost = std::int64_t{1} << 50;
constexpr int kMostRanks = 1 << 20;

/// Separated by commas.
OptionValue texts(std::vector<std::string>& target) {
  return {.set = [&target](std::string_view value) -> Result<void> {
    target.clear();
    while (!value.empty()) {
      const auto end = std::min(value.find(','), value.size());
      if (end == 0) return fail(Errc::invalid_argument, "a name between two commas is empty");
      target.emplace_back(value.substr(0, end));
      value.remove_prefix(std::min(end + 1, value.size()));
    }
    return {};
  }};
}

Rows of_optimizer(OptimizerOptions& optimizer) {
  return {
      {"optimizer", "sgd, adam, adamw, lion or muon",
       choice(optimizer.kind, {{"sgd", OptimizerKind::sgd},
                               {"adam", OptimizerKind::adam},
                               {"adamw", OptimizerKind::adamw},
                               {"lion", OptimizerKind::lion},
                               {"muon", OptimizerKind::muon}})},
      {"beta1", "First beta of Adam and Lion", number(optimizer.beta1, {0, 1})},
      {"beta2", "Second beta of Adam and Lion", number(optimizer.beta2, {0, 1})},
      {"epsilon", "Epsilon of Adam and Muon", number(optimizer.epsilon, {0, 1})},
      {"weight-decay", "Weight decay of the optimizer", number(optimizer.weight_decay, {0, 1e30})},
      {"momentum", "Momentum of SGD and Muon", number(optimizer.momentum, {0, 1})},
      {"nesterov", "Nesterov momentum of Muon", flag(optimizer.nesterov)},
      {"newton-schulz-steps", "Iterations by which Muon makes a matrix orthogonal",
       number(optimizer.newton_schulz_steps, {1, 100})},
      {"muon-scale", "What Muon multiplies the learning rate by: original or match_rms_adamw",
       choice(optimizer.scale,
              {{"original", MuonScale::original}, {"match_rms_adamw", MuonScale::match_rms_adamw}})},
  };
}

Rows of_loss_scaling(LossScaling& scaling) {
  return {
      {"loss-scaling", "What losses are multiplied by before backward: none, fixed or dynamic",
       choice(scaling.kind,
              {{"none", LossScale::none}, {"fixed", LossScale::fixed}, {"dynamic", LossScale::dynamic}})},
      {"loss-scale", "The loss scale; a dynamic one begins with it", number(scaling.scale, {0, 3e38})},
      {"loss-scale-growth", "Factor by which a dynamic loss scale grows", number(scaling.growth, {1, 1e6})},
      {"loss-scale-interval", "Steps in a row with finite gradients after which it grows",
       number(scaling.interval, {1, 1 << 30})},
      {"loss-scale-backoff", "Factor by which NaN or Inf gradients reduce it",
       number(scaling.backoff, {0, 1})},
      {"loss-scale-minimum", "The least that it becomes", number(scaling.minimum, {0, 3e38})},
      {"loss-scale-hysteresis", "Steps with NaN or Inf gradients, since it last grew, that reduce it",
       number(scaling.hysteresis, {1, 1 << 30})},
  };
}

/// What is done about gradients at the end of a step.
Rows of_gradients(TrainingOptions& training) {
  return {
      {"f32-gradients",
       "With gradients-in-parameter-dtype: names of parameters, as in *.norm.*,embedding, whose gradients "
       "are f32",
       texts(training.f32_gradients)},
      {"average-in-collective",
       "Fast numerics: collectives divide sums by the number of members; ranks do not divide beforehand",
       flag(training.average_in_collective)},
      {"unused-parameters", "What to do about a parameter without a gradient: refuse or zeros",
       choice(training.unused_parameters,
              {{"refuse", UnusedParameters::refuse}, {"zeros", UnusedParameters::zeros}})},
      {"large-gradient-factor",
       "Warn of gradients whose norm is above this many times the largest of the first 100 steps; 0: never",
       number(training.large_gradient_factor, {0, 1e30})},
      {"clip-norm", "Clip gradients to this global norm; 0: no clipping",
       number(training.clip_norm, {0, 1e30})},
  };
}

/// Which ranks share what.
Rows of_axes(TrainingOptions& training) {
  return {
      {"optimizer-instances",
       "Replicas of the sharded optimizer; for hsdp and hfsdp, the size of the outer axis",
       number(training.optimizer_instances, {1, kMostRanks})},
      {"tensor-parallel", "Ranks that share each layer; group tp",
       number(training.tensor_parallel, {1, kMostRanks})},
      {"pipeline-parallel", "Pipeline stages: ranks that share the layers of the model; group pp",
       number(training.pipeline_parallel, {1, kMostRanks})},
      {"context-parallel", "Ranks that share each lane, for example its sequences; group cp",
       number(training.context_parallel, {1, kMostRanks})},
      {"context-pieces",
       "Pieces of each lane, a multiple of the ranks that share it: bits depend on it instead of on these; "
       "0: as many",
       number(training.context_pieces, {0, kMostRanks})},
      {"expert-parallel", "Data-parallel ranks that the experts of a layer are distributed over; group ep",
       number(training.expert_parallel, {1, kMostRanks})},
      {"expert-tensor-parallel",
       "Ranks that each expert is cut over, a multiple or a divisor of the tensor-parallel ones; 0: as many",
       number(training.expert_tensor_parallel, {0, kMostRanks})},
  };
}

}  // namespace

Rows common_options(TrainingOptions& training) {
  Rows all{
      {"strategy",
       "What is sharded: ddp nothing, zero1 the optimizer, zero2 gradients too, zero3 parameters too; hsdp "
       "and hfsdp within each of the optimizer-instances",
       named(training.strategy, strategy_from_name, {"ddp", "zero1", "zero2", "zero3", "hsdp", "hfsdp"})},
      {"numerics", "Order of sums: ordered (the same bits for any number of ranks) or fast",
       named(training.numerics, numerics_from_name, {"ordered", "fast"})},
      {"lanes",
       "Logical data-parallel workers; 0: one per data-parallel rank, or per group of ranks that share lanes",
       number(training.lanes, {0, 1 << 20})},
      {"microbatches", "Microbatches per lane and step", number(training.microbatches, {1, 1 << 20})},
      {"overlap", "Collectives run during backward and forward", flag(training.overlap)},
      {"bucket-elements", "Elements after which a bucket closes, instead of the default",
       number(training.bucket_elements, {1, kMost})},
      {"gradients-in-parameter-dtype", "Fast numerics: gradients have the parameters' dtype instead of f32",
       flag(training.gradients_in_parameter_dtype)},
      {"average",
       "Average gradients over lanes and microbatches, or by lanes' weights, instead of summing them",
       flag(training.average)},
      {"loss-divisor", "For lanes with weights: what the trainer divides losses and their gradients by",
       number(training.loss_divisor, {1e-30, 1e30})},
      {"gathered-units", "Units, such as layers, whose full parameters and gradients may exist at once",
       number(training.gathered_units, {1, 1 << 20})},
      {"staging-elements", "Elements that a rank may receive at once when gradients are exchanged; 0: all",
       number(training.staging_elements, {0, kMost})},
      {"wire-dtype", "Dtype in which gradients are sent, f32 or bf16; they are summed in f32",
       named(training.wire_dtype, dtype_from_name, {"f32", "bf16"})},
  };
  for (auto& more : {of_axes(training), of_gradients(training), of_optimizer(training.optimizer),
                     of_loss_scaling(training.loss_scaling)})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

Rows common_options(ParameterGroup& group) {
  auto all = of_optimizer(group.optimizer);
  all.push_back({"learning-rate-factor", "What the learning rate of every step is multiplied by",
                 number(group.learning_rate_factor, {0, 1e30})});
  return all;
}

const CommonOption& option_named(const Rows& all, std::string_view name) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name == name; });
  CHECK(found != all.end(), "the table has the option");
  return *found;
}

}  // namespace troupe::core
