#include "actors/engine/job.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "core/check.hpp"
#include "core/hash.hpp"

namespace troupe::actors {

namespace {

core::Result<void> check_parameters(const std::vector<ParameterSpec>& specs) {
  if (specs.empty()) {
    return core::fail(core::Errc::invalid_argument, "a job has no parameters; register at least one");
  }
  std::vector<std::string> names;
  for (const auto& spec : specs) {
    if (spec.elements() <= 0) {
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
        "{} lanes can not be played by {} ranks: every rank plays at least one; use at least {} lanes or "
        "at most {} ranks",
        options.lanes, world.value, world.value, options.lanes);
  }
  if (options.microbatches < 1) {
    return core::fail(core::Errc::invalid_argument, "{} microbatches a lane; at least 1",
                      options.microbatches);
  }
  if (options.optimizer_instances < 1 || world.value % options.optimizer_instances != 0) {
    return core::fail(core::Errc::invalid_argument, "{} optimizer instances do not divide {} ranks",
                      options.optimizer_instances, world.value);
  }
  if (options.optimizer_instances > 1 && options.strategy == Strategy::ddp) {
    return core::fail(core::Errc::invalid_argument,
                      "optimizer instances are replicas of a sharded optimizer; ddp has none, use zero1");
  }
  if (options.gradients_in_parameter_dtype && options.numerics == Numerics::ordered) {
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
  for (std::uint32_t b = 0; b < job.buffers.size(); ++b) {
    auto& buffer = job.buffers[b];
    std::vector<core::LayoutParameter> parameters;
    for (auto index : buffer.parameters) {
      parameters.push_back({job.specs[index].elements(), job.specs[index].shared_embedding});
    }
    core::LayoutOptions options{bucket_size(job.options, job.world), job.shards(), false};
    auto policy = job.optimizer_is_sharded() ? core::LayoutPolicy::padded : core::LayoutPolicy::plain;
    buffer.layout = TRY(core::buffer_layout(policy, parameters, options));
    auto first = static_cast<std::uint32_t>(job.buckets.size());
    for (const auto& place : buffer.layout.buckets) job.buckets.push_back({b, {place.start, place.end}, {}});
    for (std::size_t i = 0; i < buffer.parameters.size(); ++i) {
      const auto& place = buffer.layout.parameters[i];
      auto bucket = first + static_cast<std::uint32_t>(place.bucket);
      job.parameters[buffer.parameters[i]] = {b, bucket, {place.start, place.end}};
      job.buckets[bucket].parameters.push_back(buffer.parameters[i]);
    }
  }
  return {};
}

std::string line(const Job& job, const char* kind, const char* group, std::uint32_t bucket,
                 core::DType dtype) {
  const auto& range = job.buckets[bucket].range;
  return fmt::format("{} {} bucket {} elements {} {} bytes {}", kind, group, bucket, range.size(),
                     core::name_of(dtype), static_cast<std::size_t>(range.size()) * core::size_of(dtype));
}

void plan_reduction(Job& job, std::uint32_t bucket) {
  auto dtype = job.buffers[job.buckets[bucket].buffer].gradient_dtype;
  auto index = static_cast<std::int32_t>(bucket);
  bool instances = job.options.optimizer_instances > 1;
  if (job.options.numerics == Numerics::ordered) {
    job.plan.entries.push_back(
        {Purpose::exchange_gradients, index, line(job, "all_to_all", "dp", bucket, core::DType::f32)});
    if (!job.optimizer_is_sharded()) {
      job.plan.entries.push_back(
          {Purpose::gather_gradients, index, line(job, "all_gather", "dp", bucket, dtype)});
    }
  } else {
    const char* kind = job.optimizer_is_sharded() ? "reduce_scatter" : "all_reduce";
    job.plan.entries.push_back({Purpose::reduce_gradients, index,
                                line(job, kind, instances ? "dp-inner+dp-outer" : "dp", bucket, dtype)});
  }
}

void plan_step(Job& job) {
  auto buckets = static_cast<std::uint32_t>(job.buckets.size());
  for (std::uint32_t bucket = 0; bucket < buckets; ++bucket) plan_reduction(job, bucket);
  job.plan.entries.push_back({Purpose::verdict, -1, "all_reduce dp verdict i64"});
  if (job.optimizer_is_sharded()) {
    const char* group = job.options.optimizer_instances > 1 ? "dp-inner" : "dp";
    for (std::uint32_t bucket = buckets; bucket-- > 0;) {
      auto dtype = job.buffers[job.buckets[bucket].buffer].dtype;
      job.plan.entries.push_back({Purpose::gather_parameters, static_cast<std::int32_t>(bucket),
                                  line(job, "all_gather", group, bucket, dtype)});
    }
  }
  job.plan.hash = core::hash64(fmt::format("{}", fmt::join(job.plan.lines(), "\n")));
}

std::string describe(const TrainingOptions& o) {
  return fmt::format(
      "strategy {}\nnumerics {}\nlanes {}\nmicrobatches {}\noverlap {}\nbucket elements {}\naverage {}\n"
      "gradients in parameter dtype {}\noptimizer instances {}\nunused parameters {}\nclip norm {}\n"
      "optimizer {} {} {} {} {} {}",
      o.strategy == Strategy::ddp ? "ddp" : "zero1", o.numerics == Numerics::fast ? "fast" : "ordered",
      o.lanes, o.microbatches, o.overlap, o.bucket_elements.value_or(-1), o.average,
      o.gradients_in_parameter_dtype, o.optimizer_instances, static_cast<int>(o.unused_parameters),
      o.clip_norm, static_cast<int>(o.optimizer.kind), o.optimizer.beta1, o.optimizer.beta2,
      o.optimizer.epsilon, o.optimizer.weight_decay, o.optimizer.momentum);
}

}  // namespace

std::int64_t ParameterSpec::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::vector<std::string> StepPlan::lines() const {
  std::vector<std::string> lines;
  for (const auto& entry : entries) lines.push_back(entry.text);
  return lines;
}

bool Job::optimizer_is_sharded() const {
  return options.strategy == Strategy::zero1;
}

int Job::shards() const {
  return world.value / options.optimizer_instances;
}

core::ElementRange Job::shard(std::uint32_t bucket, core::Rank rank) const {
  const auto& range = buckets[bucket].range;
  // Even for padded layouts; a plain bucket that does not divide gives its first shards one element more.
  std::int64_t count = shards();
  std::int64_t position = rank.value % count;
  std::int64_t size = range.size() / count;
  std::int64_t longer = range.size() % count;
  std::int64_t start = range.start + position * size + std::min(position, longer);
  return {start, start + size + (position < longer ? 1 : 0)};
}

core::Result<Job> plan_job(std::vector<ParameterSpec> specs, TrainingOptions options, core::WorldSize world) {
  Job job;
  job.specs = std::move(specs);
  job.options = std::move(options);
  job.world = world;
  if (job.options.lanes == 0) job.options.lanes = world.value;
  TRY(check_parameters(job.specs));
  TRY(check_options(job.options, world));
  job.lanes = TRY(core::split_lanes(job.options.lanes, world));
  TRY(plan_buffers(job));
  plan_step(job);
  job.configuration = describe(job.options);
  return job;
}

}  // namespace troupe::actors
