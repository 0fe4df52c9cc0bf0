#include "actors/planes/step/job.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "actors/planes/step/verdict.hpp"
#include "core/layout/buffer_layout.hpp"
#include "core/layout/buffers.hpp"

namespace troupe::actors {

namespace {

core::Result<void> check_parameters(const std::vector<ParameterSpec>& specs) {
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

core::Result<void> check_options(const TrainingOptions& options, core::WorldSize world) {
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

std::optional<std::int64_t> bucket_size(const TrainingOptions& options, core::WorldSize world) {
  if (!options.overlap) return std::nullopt;
  if (options.bucket_elements) return options.bucket_elements;
  return std::max<std::int64_t>(40'000'000, 1'000'000 * static_cast<std::int64_t>(world.value));
}

/// In the order in which backward completes them, whichever buffer they are of.
void number_buckets(Job& job) {
  std::vector<core::BufferLayout> layouts;
  std::vector<std::vector<std::size_t>> members;
  std::vector<std::vector<std::uint32_t>> numbers;  // of each buffer's buckets
  for (const auto& buffer : job.buffers) {
    layouts.push_back(buffer.layout);
    members.emplace_back(buffer.parameters.begin(), buffer.parameters.end());
    numbers.emplace_back(buffer.layout.buckets.size());
  }
  for (const auto& [buffer, bucket] : core::ready_order(layouts, members)) {
    const auto& place = layouts[buffer].buckets[bucket];
    numbers[buffer][bucket] = static_cast<std::uint32_t>(job.buckets.size());
    job.buckets.push_back({static_cast<std::uint32_t>(buffer), {place.start, place.end}, {}});
  }
  for (std::uint32_t b = 0; b < job.buffers.size(); ++b) {
    const auto& buffer = job.buffers[b];
    for (std::size_t i = 0; i < buffer.parameters.size(); ++i) {
      const auto& place = buffer.layout.parameters[i];
      const auto bucket = numbers[b][static_cast<std::size_t>(place.bucket)];
      job.parameters[buffer.parameters[i]] = {b, bucket, {place.start, place.end}};
      job.buckets[bucket].parameters.push_back(buffer.parameters[i]);
    }
  }
}

core::Result<void> plan_buffers(Job& job) {
  job.parameters.resize(job.specs.size());
  for (std::uint32_t index = 0; index < job.specs.size(); ++index) {
    auto dtype = job.specs[index].dtype;
    auto found =
        std::find_if(job.buffers.begin(), job.buffers.end(), [&](const auto& b) { return b.dtype == dtype; });
    if (found == job.buffers.end()) {
      auto gradient = job.options.gradients_in_parameter_dtype ? dtype : core::DType::f32;
      job.buffers.push_back({dtype, gradient, {}, {}});
      found = job.buffers.end() - 1;
    }
    found->parameters.push_back(index);
  }
  for (auto& buffer : job.buffers) {
    std::vector<core::LayoutParameter> parameters;
    for (auto index : buffer.parameters) {
      parameters.push_back({job.specs[index].elements(), job.specs[index].shared_embedding});
    }
    core::LayoutOptions options{bucket_size(job.options, job.world), job.shards(), false};
    auto policy = job.optimizer_is_sharded() ? core::LayoutPolicy::padded : core::LayoutPolicy::plain;
    buffer.layout = TRY(core::buffer_layout(policy, parameters, options));
  }
  number_buckets(job);
  return {};
}

core::Result<void> plan_collectives(Job& job) {
  core::StepDescription step;
  step.strategy = job.options.strategy;
  step.numerics = job.options.numerics;
  step.lanes = job.options.lanes;
  for (const auto& bucket : job.buckets) {
    const auto& buffer = job.buffers[bucket.buffer];
    step.buckets.push_back({bucket.range.size(), buffer.gradient_dtype, buffer.dtype, false});
  }
  step.verdict_elements = static_cast<std::int64_t>(verdict_words(job.options.lanes, job.world));
  job.plan = TRY(core::plan_step(step, job.mesh));
  return {};
}

std::string describe(const TrainingOptions& o) {
  return fmt::format(
      "strategy {}\nnumerics {}\nlanes {}\nmicrobatches {}\noverlap {}\nbucket elements {}\naverage {}\n"
      "gradients in parameter dtype {}\noptimizer instances {}\nunused parameters {}\nclip norm {}\n"
      "optimizer {} {} {} {} {} {}",
      core::name_of(o.strategy), core::name_of(o.numerics), o.lanes, o.microbatches, o.overlap,
      o.bucket_elements.value_or(-1), o.average, o.gradients_in_parameter_dtype, o.optimizer_instances,
      static_cast<int>(o.unused_parameters), o.clip_norm, static_cast<int>(o.optimizer.kind),
      o.optimizer.beta1, o.optimizer.beta2, o.optimizer.epsilon, o.optimizer.weight_decay,
      o.optimizer.momentum);
}

}  // namespace

std::int64_t ParameterSpec::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

core::Result<std::vector<core::ShardedTensor>> ParameterSpec::stored_parts() const {
  auto whole = TRY(core::ShardedTensor::from_rank_offsets(name, dtype, shape));
  whole.allow_shape_mismatch = allow_shape_mismatch;
  return core::stacked_parts(whole, stacking);
}

bool Job::optimizer_is_sharded() const {
  return options.strategy == core::Strategy::zero1;
}

int Job::shards() const {
  return world.value / options.optimizer_instances;
}

core::ElementRange Job::shard(std::uint32_t bucket, core::Rank rank) const {
  return core::even_part(buckets[bucket].range, shards(), rank.value % shards());
}

core::Result<Job> plan_job(std::vector<ParameterSpec> specs, TrainingOptions options, core::WorldSize world) {
  Job job;
  job.specs = std::move(specs);
  job.options = std::move(options);
  job.world = world;
  if (job.options.lanes == 0) job.options.lanes = world.value;
  TRY(check_parameters(job.specs));
  TRY(check_options(job.options, world));
  core::MeshSizes sizes;
  sizes.dp = world.value;
  sizes.optimizer_instances = job.options.optimizer_instances;
  job.mesh = TRY(core::Mesh::create(sizes));
  job.lanes = TRY(core::split_lanes(job.options.lanes, world));
  TRY(plan_buffers(job));
  TRY(plan_collectives(job));
  job.configuration = describe(job.options);
  return job;
}

}  // namespace troupe::actors
