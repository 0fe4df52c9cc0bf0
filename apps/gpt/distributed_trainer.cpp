#include "apps/gpt/distributed_trainer.hpp"

#include <algorithm>
#include <chrono>

#include "actors/planes/step/arena.hpp"
#include "actors/planes/step/training_plan.hpp"
#include "actors/shell/rank_world.hpp"
#include "core/convert.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "gpu/kernels.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

constexpr auto kDeadline = std::chrono::minutes(5);

Result<void> check_fits(actors::RankWorld& world, const DistributedTrainerOptions& options,
                        std::size_t device_bytes) {
  const auto specs = session_parameters(parameter_table(options.model), options.arithmetic.dtype);
  const auto plan = TRY(actors::plan_training(specs, options.session.training, world.world_size()));
  const MemoryShares shares{.gradient_slots = actors::gradient_slots(plan, world.rank()),
                            .optimizer_shards = plan.optimizer_is_sharded() ? plan.shards() : 1};
  return check_memory(
      memory_need(options.model, options.microbatch, options.arithmetic, world.device().kind(), shares),
      device_bytes);
}

}  // namespace

std::vector<core::ParameterSpec> session_parameters(const ParameterTable& table, core::DType dtype) {
  std::vector<core::ParameterSpec> specs;
  for (const auto& spec : table.specs) {
    core::ParameterSpec parameter;
    parameter.name = spec.name;
    for (std::size_t extent : spec.shape) parameter.shape.push_back(static_cast<std::int64_t>(extent));
    parameter.dtype = dtype;
    parameter.weight_decay = spec.weight_decay;
    specs.push_back(std::move(parameter));
  }
  return specs;
}

Result<std::unique_ptr<DistributedTrainer>> DistributedTrainer::create(
    actors::RankWorld& world, const DistributedTrainerOptions& options, const Corpus& corpus,
    std::optional<std::size_t> device_bytes) {
  TRY(check_model(options.model, options.microbatch, options.arithmetic, world.device().kind()));
  if (device_bytes) TRY(check_fits(world, options, *device_bytes));
  std::unique_ptr<DistributedTrainer> trainer(new DistributedTrainer(world, options, corpus));
  TRY(trainer->open(world));
  return trainer;
}

DistributedTrainer::DistributedTrainer(actors::RankWorld& world, const DistributedTrainerOptions& options,
                                       const Corpus& corpus)
    : options_(options), device_(&world.device()), corpus_(&corpus), batch_(options.microbatch) {}

Result<void> DistributedTrainer::open(actors::RankWorld& world) {
  // The host's model is made before the job is joined: what does not fit here need not hold up the others.
  const bool on_host = device_->kind() != gpu::DeviceKind::cuda;
  const auto make = [&] {
    return create_model(options_.model, options_.microbatch, options_.arithmetic, *device_, compute_);
  };
  if (on_host) model_ = TRY(make());
  const auto specs = session_parameters(parameter_table(options_.model), options_.arithmetic.dtype);
  session_ = TRY(actors::Session::join(world, options_.session, specs));
  if (!on_host) {
    compute_ = TRY(session_->compute_stream());
    model_ = TRY(make());
  }
  gradients_.resize(specs.size());
  TRY(write_initial_values(*device_));
  return on_host ? Result<void>{} : warm_up();
}

// A kernel is loaded when it first runs, and loading may wait for all that the device runs: for a collective,
// say, whose other ranks wait for this one. So every kernel runs once before the first collective.
Result<void> DistributedTrainer::warm_up() {
  std::size_t largest = 0;
  for (const auto& spec : model_->table().specs) largest = std::max(largest, spec.elements());
  const auto scratch = TRY(device_->allocate(largest * sizeof(float)));
  const std::vector<float*> gradients(readable_.size(), scratch.view().as<float>().data());
  batch_.fill_evenly(corpus_->evaluation(), 0, 1);
  TRY(model_->forward_backward(readable_, gradients, batch_.tokens(), batch_.targets(), {}));
  TRY(model_->take_losses());
  return compute_->synchronize(kDeadline);
}

Result<void> DistributedTrainer::write_initial_values(gpu::Device& device) {
  const RandomValues random(options_.seed);
  const InitialValues& initial = options_.initial != nullptr ? *options_.initial : random;
  for (std::uint32_t i = 0; i < gradients_.size(); ++i) {
    const auto& spec = model_->table().specs[i];
    const gpu::BufferView place = TRY(session_->parameter_memory({i}));
    readable_.push_back(place.data);
    if (compute_ == nullptr) {
      TRY(initial.read(spec, place.as<float>()));
      continue;
    }
    std::vector<float> values(spec.elements());
    TRY(initial.read(spec, values));
    const auto staging = TRY(device.allocate_staging(place.bytes));
    gpu::cast({gpu::view_of(std::span<const float>(values)), core::DType::f32},
              {staging.view(), options_.arithmetic.dtype});
    gpu::copy(staging.view(), place, compute_);
    TRY(compute_->synchronize(kDeadline));
  }
  return {};
}

std::int64_t DistributedTrainer::tokens_per_step() const {
  const auto& training = session_->training();
  return static_cast<std::int64_t>(options_.microbatch.batch * options_.microbatch.length) * training.lanes *
         training.microbatches;
}

Result<double> DistributedTrainer::run_lane(core::Lane lane) {
  TRY(session_->begin_lane(lane));
  for (std::uint32_t i = 0; i < gradients_.size(); ++i)
    gradients_[i] = TRY(session_->gradient_memory({i})).as<float>().data();
  const auto index = [](std::size_t p) { return core::ParameterIndex{static_cast<std::uint32_t>(p)}; };
  Result<void> ready;  // the first failure
  const StepHooks hooks{.before_use = [&](std::size_t p) { return session_->before_use(index(p)); },
                        .gradient_ready =
                            [&](std::size_t p) {
                              if (auto told = session_->gradient_ready(index(p)); !told && ready)
                                ready = told;
                            }};
  const int microbatches = session_->training().microbatches;
  for (int m = 0; m < microbatches; ++m) {
    TRY(session_->begin_microbatch(m));
    batch_.fill_at_random(corpus_->training(),
                          {options_.seed, session_->next_step(), lane, static_cast<std::uint32_t>(m)});
    TRY(model_->forward_backward(readable_, gradients_, batch_.tokens(), batch_.targets(), hooks));
    TRY(ready);
  }
  double loss = 0;
  for (const double one : TRY(model_->take_losses())) loss += one;
  return loss / microbatches;
}

Result<actors::StepOutcome> DistributedTrainer::step(std::uint32_t wishes) {
  TRY(session_->begin_step(learning_rate()));
  for (core::Lane lane : session_->lanes()) TRY(session_->end_lane(TRY(run_lane(lane))));
  return session_->finish_step({}, wishes);
}

Result<std::optional<actors::Restored>> DistributedTrainer::resume(const actors::RestoreOptions& options) {
  return session_->restore(options);
}

core::Value DistributedTrainer::description() const {
  using core::Value;
  const auto number = [](auto value) { return Value(static_cast<std::int64_t>(value)); };
  const auto& training = session_->training();
  const auto& schedule = options_.schedule;
  return Value::Map{{"program", "gpt"},
                    {"seed", number(options_.seed)},
                    {"lanes", number(training.lanes)},
                    {"microbatches", number(training.microbatches)},
                    {"sequences", number(options_.microbatch.batch)},
                    {"context", number(options_.microbatch.length)},
                    {"schedule", Value::Map{{"peak", schedule.peak},
                                            {"floor", schedule.floor},
                                            {"warmup", schedule.warmup.value},
                                            {"total", schedule.total.value}}}};
}

Result<void> DistributedTrainer::save() {
  TRY(session_->save(description()));
  return {};
}

Result<void> DistributedTrainer::save_local() {
  TRY(session_->save_local(description()));
  return {};
}

Result<TrainableModel::Parameters> DistributedTrainer::parameters() {
  TRY(session_->publish_all());
  return TrainableModel::Parameters(readable_);
}

Result<void> DistributedTrainer::read_parameter(std::size_t parameter, core::ElementRange range,
                                                std::span<float> values) {
  TRY(parameters());
  const auto width = core::size_of(options_.arithmetic.dtype);
  gpu::BufferView place = TRY(session_->parameter_memory({static_cast<std::uint32_t>(parameter)}));
  place = place.subview(static_cast<std::size_t>(range.start) * width, values.size() * width);
  gpu::Buffer staging;
  if (compute_ != nullptr) {
    staging = TRY(device_->allocate_staging(place.bytes));
    gpu::copy(place, staging.view(), compute_);
    TRY(compute_->synchronize(kDeadline));
    place = staging.view();
  }
  core::convert_elements(options_.arithmetic.dtype, place.data, core::DType::f32,
                         std::as_writable_bytes(values).data(), values.size());
  return {};
}

Result<std::uint64_t> DistributedTrainer::parameter_hash() {
  TRY(parameters());
  std::uint64_t hash = 0;
  for (std::uint32_t i = 0; i < readable_.size(); ++i) {
    gpu::BufferView values = TRY(session_->parameter_memory({i}));
    gpu::Buffer staging;
    if (compute_ != nullptr) {
      staging = TRY(device_->allocate_staging(values.bytes));
      gpu::copy(values, staging.view(), compute_);
      TRY(compute_->synchronize(kDeadline));
      values = staging.view();
    }
    hash = core::hash64(values.as<const std::byte>(), hash);
  }
  return hash;
}

Result<double> DistributedTrainer::evaluate(std::size_t batches) {
  const auto readable = TRY(parameters());
  for (std::size_t i = 0; i < batches; ++i) {
    batch_.fill_evenly(corpus_->evaluation(), i, batches);
    TRY(model_->forward_loss(readable, batch_.tokens(), batch_.targets()));
  }
  double total = 0;
  for (const double loss : TRY(model_->take_losses())) total += loss;
  return total / static_cast<double>(batches);
}

}  // namespace troupe::apps::gpt
