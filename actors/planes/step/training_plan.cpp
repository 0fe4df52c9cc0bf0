#include "actors/planes/step/training_plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "actors/planes/step/verdict.hpp"
#include "core/errors.hpp"
#include "core/indices.hpp"
#include "core/layout/buffer_layout.hpp"
#include "core/layout/buffers.hpp"

namespace troupe::actors {

namespace {

core::Result<void> check_parameters(const std::vector<core::ParameterSpec>& specs) {
  if (specs.empty()) {
    return core::fail(core::Errc::invalid_argument, "a job has no parameters; register at least one");
  }
  std::vector<std::string> names;
  for (const auto& spec : specs) {
    if (std::any_of(spec.shape.begin(), spec.shape.end(), [](auto extent) { return extent < 1; })) {
      return core::fail(core::Errc::invalid_argument,
                        "parameter {} has the shape [{}]; every extent must be above 0", spec.name,
                        fmt::join(spec.shape, ", "));
    }
    bool usable =
        spec.dtype == core::DType::f32 || spec.dtype == core::DType::bf16 || spec.dtype == core::DType::f16;
    if (!usable) {
      return core::fail(core::Errc::invalid_argument, "parameter {} is {}; parameters are f32, bf16 or f16",
                        spec.name, core::name_of(spec.dtype));
    }
    TRY(spec.stored_parts());
    names.push_back(spec.name);
  }
  std::sort(names.begin(), names.end());
  auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) {
    return core::fail(core::Errc::invalid_argument, "two parameters are called {}; names must differ",
                      *twice);
  }
  return {};
}

core::Result<void> check_options(const core::TrainingOptions& options, core::WorldSize world) {
  if (options.lanes < world.value) {
    return core::fail(
        core::Errc::invalid_argument,
        "{} lanes cannot be played by {} ranks: every rank plays at least one; use at least {} lanes or "
        "at most {} ranks",
        options.lanes, world.value, world.value, options.lanes);
  }
  if (options.microbatches < 1) {
    return core::fail(core::Errc::invalid_argument, "{} microbatches per lane; at least 1",
                      options.microbatches);
  }
  if (!(options.clip_norm >= 0)) {
    return core::fail(
        core::Errc::invalid_argument,
        "gradients cannot be clipped at the norm {}; give a clip norm above 0, or 0 for no clipping",
        options.clip_norm);
  }
  if (options.optimizer_instances < 1 || world.value % options.optimizer_instances != 0) {
    return core::fail(core::Errc::invalid_argument, "{} optimizer instances do not divide {} ranks",
                      options.optimizer_instances, world.value);
  }
  if (options.optimizer_instances > 1 && options.strategy == core::Strategy::ddp) {
    return core::fail(core::Errc::invalid_argument,
                      "optimizer instances are replicas of a sharded optimizer; ddp has none, use zero1");
  }
  if (options.gradients_in_parameter_dtype && options.numerics == core::Numerics::ordered) {
    return core::fail(
        core::Errc::invalid_argument,
        "ordered numerics keeps gradients in f32, so that a lane's sum does not depend on who adds it; "
        "use fast numerics for gradients in the parameters' dtype");
  }
  return {};
}

std::optional<std::int64_t> bucket_size(const core::TrainingOptions& options, core::WorldSize world) {
  if (!options.overlap) return std::nullopt;
  if (options.bucket_elements) return options.bucket_elements;
  return std::max<std::int64_t>(40'000'000, 1'000'000 * static_cast<std::int64_t>(world.value));
}

/// In the order in which backward completes them, whichever buffer they are of.
void number_buckets(TrainingPlan& plan) {
  std::vector<core::BufferLayout> layouts;
  std::vector<std::vector<std::size_t>> members;
  std::vector<std::vector<core::BucketIndex>> numbers;  // of each buffer's buckets
  for (const auto& buffer : plan.buffers) {
    layouts.push_back(buffer.layout);
    auto& own = members.emplace_back();
    for (const auto parameter : buffer.parameters) own.push_back(parameter.value);
    numbers.emplace_back(buffer.layout.buckets.size());
  }
  for (const auto& [buffer, bucket] : core::ready_order(layouts, members)) {
    const auto& place = layouts[buffer].buckets[bucket];
    numbers[buffer][bucket] = core::index_at<core::BucketIndex>(plan.buckets.size());
    plan.buckets.push_back({core::index_at<core::BufferIndex>(buffer), {place.start, place.end}, {}});
  }
  for (const auto b : core::indices<core::BufferIndex>(plan.buffers.size())) {
    const auto& buffer = plan.buffers[b.value];
    for (std::size_t i = 0; i < buffer.parameters.size(); ++i) {
      const auto& place = buffer.layout.parameters[i];
      const auto bucket = numbers[b.value][static_cast<std::size_t>(place.bucket)];
      plan.parameters[buffer.parameters[i].value] = {b, bucket, {place.start, place.end}};
      plan.buckets[bucket.value].parameters.push_back(buffer.parameters[i]);
    }
  }
}

core::Result<void> plan_buffers(TrainingPlan& plan) {
  plan.parameters.resize(plan.specs.size());
  for (const auto index : core::indices<core::ParameterIndex>(plan.specs.size())) {
    auto dtype = plan.specs[index.value].dtype;
    const auto& optimizer = plan.group_of(index).optimizer;
    const auto states = core::states_of(optimizer);
    const bool whole = core::traits_of(optimizer.kind).takes_matrices_only();
    auto found = std::find_if(plan.buffers.begin(), plan.buffers.end(), [&](const auto& b) {
      return b.dtype == dtype && b.whole_matrices == whole &&
             std::equal(b.states.begin(), b.states.end(), states.begin(), states.end());
    });
    if (found == plan.buffers.end()) {
      auto gradient = plan.options.gradients_in_parameter_dtype ? dtype : core::DType::f32;
      plan.buffers.push_back({dtype, gradient, {}, {}, states, whole});
      found = plan.buffers.end() - 1;
    }
    found->parameters.push_back(index);
  }
  for (auto& buffer : plan.buffers) {
    std::vector<core::LayoutParameter> parameters;
    for (auto index : buffer.parameters) {
      const auto& spec = plan.specs[index.value];
      parameters.push_back({spec.elements(), spec.shared_embedding});
      if (buffer.whole_matrices) {
        parameters.back().rows = spec.shape[0];
        parameters.back().columns = spec.shape[1];
      }
    }
    core::LayoutOptions options{bucket_size(plan.options, plan.world), plan.shards(), false};
    auto sharded = buffer.whole_matrices ? core::LayoutPolicy::whole_parameter : core::LayoutPolicy::padded;
    auto policy = plan.optimizer_is_sharded() ? sharded : core::LayoutPolicy::plain;
    buffer.layout = TRY(core::buffer_layout(policy, parameters, options));
  }
  number_buckets(plan);
  return {};
}

core::Result<void> plan_collectives(TrainingPlan& plan) {
  core::StepDescription step;
  step.strategy = plan.options.strategy;
  step.numerics = plan.options.numerics;
  step.lanes = plan.options.lanes;
  for (const auto& bucket : plan.buckets) {
    const auto& buffer = plan.buffers[bucket.buffer.value];
    step.buckets.push_back({bucket.range.size(), buffer.gradient_dtype, buffer.dtype, false});
  }
  step.verdict_elements = static_cast<std::int64_t>(verdict_words(plan.options.lanes, plan.world));
  plan.step = TRY(core::plan_step(step, plan.mesh));
  return {};
}

std::string describe(const TrainingPlan& plan) {
  const auto& o = plan.options;
  auto text = fmt::format(
      "strategy {}\nnumerics {}\nlanes {}\nmicrobatches {}\noverlap {}\nbucket elements {}\naverage {}\n"
      "gradients in parameter dtype {}\noptimizer instances {}\nunused parameters {}\nclip norm {}",
      core::name_of(o.strategy), core::name_of(o.numerics), o.lanes, o.microbatches, o.overlap,
      o.bucket_elements.value_or(-1), o.average, o.gradients_in_parameter_dtype, o.optimizer_instances,
      static_cast<int>(o.unused_parameters), o.clip_norm);
  for (const auto& group : plan.groups) {
    text += fmt::format("\noptimizer {} learning rate factor {}", core::describe(group.optimizer),
                        group.learning_rate_factor);
  }
  return text;
}

}  // namespace

bool TrainingPlan::optimizer_is_sharded() const {
  return options.strategy == core::Strategy::zero1;
}

int TrainingPlan::shards() const {
  return world.value / options.optimizer_instances;
}

core::ElementRange TrainingPlan::shard(core::BucketIndex bucket, core::Rank rank) const {
  return core::even_part(buckets[bucket.value].range, shards(), rank.value % shards());
}

core::Result<TrainingPlan> plan_training(std::vector<core::ParameterSpec> specs,
                                         core::TrainingOptions options, core::WorldSize world) {
  TrainingPlan plan;
  plan.specs = std::move(specs);
  plan.options = std::move(options);
  plan.world = world;
  if (plan.options.lanes == 0) plan.options.lanes = world.value;
  TRY(check_parameters(plan.specs));
  TRY(check_options(plan.options, world));
  plan.groups = TRY(core::parameter_groups(plan.options, plan.specs));
  core::MeshSizes sizes;
  sizes.dp = world.value;
  sizes.optimizer_instances = plan.options.optimizer_instances;
  plan.mesh = TRY(core::Mesh::create(sizes));
  plan.lanes = TRY(core::split_lanes(plan.options.lanes, world));
  TRY(plan_buffers(plan));
  TRY(plan_collectives(plan));
  plan.configuration = describe(plan);
  return plan;
}

}  // namespace troupe::actors
