#include "apps/gpt/distributed_trainer.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "actors/planes/step/rank_program.hpp"
#include "actors/planes/step/training_plan.hpp"
#include "actors/shell/rank_world.hpp"
#include "apps/gpt/optimizer.hpp"
#include "core/convert.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/layout/buffers.hpp"
#include "core/program/memory.hpp"
#include "gpu/kernels.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

constexpr auto kDeadline = std::chrono::minutes(5);

bool is_pipeline(const TrainerOptions& options) {
  return options.session.training.pipeline_parallel > 1;
}

Result<void> check_fits(actors::RankWorld& world, const TrainerOptions& options, std::size_t device_bytes) {
  const auto table = parameter_table(options.model);
  auto specs = session_parameters(table, options.arithmetic.dtype, options.session.training);
  std::optional<std::size_t> stage_bytes;
  if (is_pipeline(options)) {
    const PipelinePlace place{world.rank(), world.world_size()};
    specs = StageParameters(options.model, table, TRY(cut_of(options, place))).select(specs);
    stage_bytes = TRY(pipeline_bytes(options, place));
  }
  const auto plan = TRY(actors::plan_training(specs, options.session.training, world.world_size()));
  const auto memory = core::memory_of(actors::RankProgram(plan, world.rank()).program());
  const auto bytes = [](std::int64_t count) { return static_cast<std::size_t>(count); };
  auto need = memory_need(options.model, options.microbatch, options.arithmetic, world.device().kind());
  need.activations = stage_bytes.value_or(need.activations);
  need.parameters = bytes(memory.parameters + memory.parameter_pool);
  need.gradients = bytes(memory.gradients + memory.gradient_pool + memory.staging);
  need.optimizer = bytes(memory.main + memory.optimizer + memory.scratch);
  return check_memory(need, device_bytes);
}

}  // namespace

std::vector<core::ParameterSpec> session_parameters(const ParameterTable& table, core::DType dtype,
                                                    const core::TrainingOptions& training) {
  std::vector<core::ParameterSpec> specs;
  for (const auto& spec : table.specs) {
    const std::size_t index = specs.size();
    const bool whole =
        core::is_whole_parameter({.dimensions = spec.shape.size(),
                                  .embedding_or_output = index == table.embedding || index == table.head});
    core::ParameterSpec parameter;
    parameter.name = spec.name;
    for (std::size_t extent : spec.shape) parameter.shape.push_back(static_cast<std::int64_t>(extent));
    parameter.dtype = dtype;
    parameter.weight_decay = spec.weight_decay;
    if (spec.unit) parameter.unit = core::UnitIndex{static_cast<std::uint32_t>(*spec.unit)};
    if (!training.groups.empty()) parameter.group = whole ? kMatrices : kOthers;
    specs.push_back(std::move(parameter));
  }
  return specs;
}

Result<std::unique_ptr<DistributedTrainer>> DistributedTrainer::create(
    actors::RankWorld& world, const TrainerOptions& options, const Corpus& corpus,
    std::optional<std::size_t> device_bytes) {
  TRY(check_model(options.model, options.microbatch, options.arithmetic, world.device().kind()));
  if (is_pipeline(options)) TRY(check_pipeline(options, world.world_size(), world.device().kind()));
  if (device_bytes) TRY(check_fits(world, options, *device_bytes));
  std::unique_ptr<DistributedTrainer> trainer(new DistributedTrainer(world, options, corpus));
  TRY(trainer->open(world));
  return trainer;
}

DistributedTrainer::DistributedTrainer(actors::RankWorld& world, const TrainerOptions& options,
                                       const Corpus& corpus)
    : options_(options), device_(&world.device()), corpus_(&corpus), batch_(options.microbatch) {}

Result<void> DistributedTrainer::open(actors::RankWorld& world) {
  // The host's model is made before the job is joined: what does not fit here need not hold up the others.
  const bool on_host = device_->kind() != gpu::DeviceKind::cuda;
  const auto make = [&] {
    return create_model(options_.model, options_.microbatch, options_.arithmetic, *device_, compute_);
  };
  const auto table = parameter_table(options_.model);
  auto specs = session_parameters(table, options_.arithmetic.dtype, options_.session.training);
  kept_ = table.specs;
  if (is_pipeline(options_)) {
    TRY(make_pipeline(world, specs));
  } else if (on_host) {
    model_ = TRY(make());
  }
  session_ = TRY(actors::Session::join(world, options_.session, specs));
  if (!on_host) {
    compute_ = TRY(session_->compute_stream());
    model_ = TRY(make());
  }
  if (pipeline_) TRY(pipeline_->open(*session_, *device_, *corpus_));
  gradients_.resize(specs.size());
  TRY(write_initial_values());
  return on_host ? Result<void>{} : warm_up();
}

/// A stage in place of the model, and of the specs its own.
Result<void> DistributedTrainer::make_pipeline(actors::RankWorld& world,
                                               std::vector<core::ParameterSpec>& specs) {
  pipeline_ = TRY(PipelineTrainer::create(options_, {world.rank(), world.world_size()}, device_->kind()));
  const auto& parameters = pipeline_->parameters();
  specs = parameters.select(specs);
  const auto whole = std::exchange(kept_, {});
  for (const std::size_t place : parameters.places()) kept_.push_back(whole[place]);
  for (auto& group : pipeline_->groups()) options_.session.groups.push_back(std::move(group));
  return {};
}

// A kernel is loaded when it first runs, and loading may wait for all that the device runs: for a collective,
// say, whose other ranks wait for this one. So every kernel runs once before the first collective.
Result<void> DistributedTrainer::warm_up() {
  std::size_t largest = 0;
  for (const auto& spec : model_->table().specs) largest = std::max(largest, spec.elements());
  const auto scratch = TRY(device_->allocate(largest * sizeof(float)));
  batch_.fill_evenly(corpus_->evaluation(), 0, 1);
  const std::vector<float*> gradients(readable_.size(), scratch.view().as<float>().data());
  // Their values do not matter, and where they are sharded they are not here yet.
  const std::vector<const std::byte*> parameters(readable_.size(), scratch.view().data);
  TRY(model_->forward_backward(parameters, gradients, batch_.tokens(), batch_.targets(), {}));
  TRY(model_->take_losses());
  return compute_->synchronize(kDeadline);
}

Result<void> DistributedTrainer::write_initial_values() {
  const RandomValues random(options_.seed);
  const InitialValues& initial = options_.initial != nullptr ? *options_.initial : random;
  for (std::uint32_t i = 0; i < gradients_.size(); ++i) {
    const auto& spec = kept_[i];
    Result<void> read;
    TRY(session_->write_parameter({i}, [&](std::int64_t first, std::span<float> values) {
      read = initial.read(spec, {first, first + static_cast<std::int64_t>(values.size())}, values);
    }));
    TRY(read);
  }
  readable_.resize(gradients_.size());
  return {};
}

std::int64_t DistributedTrainer::tokens_per_step() const {
  const auto& training = session_->training();
  return static_cast<std::int64_t>(options_.microbatch.batch * options_.microbatch.length) * training.lanes *
         training.microbatches;
}

Result<void> DistributedTrainer::before_use(core::ParameterIndex parameter) {
  TRY(session_->before_use(parameter));
  readable_[parameter.value] = TRY(session_->parameter_memory(parameter)).data;
  return {};
}

StepHooks DistributedTrainer::reading() {
  StepHooks hooks;
  hooks.before_use = [this](std::size_t p) { return before_use({static_cast<std::uint32_t>(p)}); };
  return hooks;
}

Result<double> DistributedTrainer::run_lane(core::Lane lane) {
  TRY(session_->begin_lane(lane));
  for (std::uint32_t i = 0; i < gradients_.size(); ++i)
    gradients_[i] = TRY(session_->gradient_memory({i})).as<float>().data();
  const auto index = [](std::size_t p) { return core::ParameterIndex{static_cast<std::uint32_t>(p)}; };
  Result<void> ready;  // the first failure
  const StepHooks hooks{.before_use = [&](std::size_t p) { return before_use(index(p)); },
                        .begin_backward = [&] { return session_->begin_backward(); },
                        .gradient_ready =
                            [&](std::size_t p) {
                              if (auto told = session_->gradient_ready(index(p)); !told && ready)
                                ready = told;
                            },
                        .loss_scale = session_->loss_scale()};
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
  if (pipeline_) {
    TRY(pipeline_->play_lanes());
    return session_->finish_step({}, wishes);
  }
  for (core::Lane lane : session_->lanes()) TRY(session_->end_lane(TRY(run_lane(lane))));
  return session_->finish_step({}, wishes);
}

Result<std::optional<actors::Restored>> DistributedTrainer::resume(const actors::RestoreOptions& options) {
  if (pipeline_) pipeline_->forget_copies();
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

Result<void> DistributedTrainer::export_model(const ExportOptions& options) {
  TRY(session_->begin_evaluation());
  TRY(gpt::export_model(
      options_.model,
      [this](std::size_t parameter, core::ElementRange range, std::span<float> values) {
        return read_parameter({static_cast<std::uint32_t>(parameter)}, range, values);
      },
      options));
  return session_->end_evaluation();
}

// An export reads parameters in the order of the table, so this is what it waits for.
Result<void> DistributedTrainer::hand_over_parameters() {
  TRY(session_->begin_evaluation());
  if (pipeline_) TRY(pipeline_->hand_over_parameters());
  for (std::uint32_t i = 0; i < readable_.size(); ++i) TRY(session_->before_use({i}));
  return session_->end_evaluation();
}

/// In an evaluation.
Result<void> DistributedTrainer::read_parameter(core::ParameterIndex parameter, core::ElementRange range,
                                                std::span<float> values) {
  if (pipeline_) {
    const auto whole = TRY(pipeline_->take_parameter(parameter.value));
    std::copy_n(whole.data() + range.start, values.size(), values.data());
    return {};
  }
  TRY(session_->before_use(parameter));
  const auto dtype = options_.arithmetic.dtype;
  const auto offset = static_cast<std::size_t>(range.start) * core::size_of(dtype);
  gpu::Buffer staging;
  const auto place = TRY(on_host(
      TRY(session_->parameter_memory(parameter)).subview(offset, values.size() * core::size_of(dtype)),
      staging));
  core::convert_elements(dtype, place.data, core::DType::f32, std::as_writable_bytes(values).data(),
                         values.size());
  return {};
}

/// The same bytes where the host reads them: where they are, or in `staging`.
Result<gpu::BufferView> DistributedTrainer::on_host(gpu::BufferView values, gpu::Buffer& staging) {
  if (compute_ == nullptr) return values;
  staging = TRY(device_->allocate_staging(values.bytes));
  gpu::copy(values, staging.view(), compute_);
  TRY(compute_->synchronize(kDeadline));
  return staging.view();
}

Result<std::uint64_t> DistributedTrainer::parameter_hash() {
  TRY(session_->begin_evaluation());
  std::uint64_t hash = 0;
  if (pipeline_) hash = TRY(pipeline_->parameter_hash());
  for (std::uint32_t i = 0; !pipeline_ && i < readable_.size(); ++i) {
    TRY(session_->before_use({i}));
    gpu::Buffer staging;
    const auto values = TRY(on_host(TRY(session_->parameter_memory({i})), staging));
    hash = core::hash64(values.as<const std::byte>(), hash);
  }
  TRY(session_->end_evaluation());
  return hash;
}

Result<double> DistributedTrainer::evaluate(std::size_t batches) {
  TRY(session_->begin_evaluation());
  if (pipeline_) {
    const double loss = TRY(pipeline_->evaluate(batches));
    TRY(session_->end_evaluation());
    return loss;
  }
  for (std::size_t i = 0; i < batches; ++i) {
    batch_.fill_evenly(corpus_->evaluation(), i, batches);
    TRY(model_->forward_loss(readable_, batch_.tokens(), batch_.targets(), reading()));
  }
  TRY(session_->end_evaluation());
  double total = 0;
  for (const double loss : TRY(model_->take_losses())) total += loss;
  return total / static_cast<double>(batches);
}

Result<std::span<const float>> DistributedTrainer::logits(TrainableModel::Tokens tokens) {
  TRY(session_->begin_evaluation());
  const auto found =
      TRY(pipeline_ ? pipeline_->logits(tokens) : model_->logits(readable_, tokens, reading()));
  TRY(session_->end_evaluation());
  return found;
}

}  // namespace troupe::apps::gpt
