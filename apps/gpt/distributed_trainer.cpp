#include "apps/gpt/distributed_trainer.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "actors/planes/step/rank_program.hpp"
#include "actors/planes/step/training_plan.hpp"
#include "actors/session/passes.hpp"
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
/// What ranks add their counts of experts in.
constexpr const char* kAllRanks = "all-ranks";
/// Checkpoints keep so many counts of experts at most: the values of a rank have little room.
constexpr std::size_t kMostSavedCounts = 8192;

actors::TrainerGroupSpec all_ranks(core::WorldSize world) {
  std::vector<core::Rank> members;
  for (int rank = 0; rank < world.value; ++rank) members.push_back({rank});
  return {kAllRanks, {std::move(members)}};
}

bool is_pipeline(const TrainerOptions& options) {
  return options.session.training.pipeline_parallel > 1;
}

/// What this rank registers of the layers it computes, all of them unless the model is cut into stages.
std::vector<core::ParameterSpec> parameters_of_rank(const TrainerOptions& options, const TensorRank* tensor) {
  const auto& training = options.session.training;
  if (tensor == nullptr)
    return session_parameters(parameter_table(options.model), options.arithmetic.dtype, training);
  auto specs = session_parameters(tensor->table().part(), options.arithmetic.dtype, training);
  tensor->table().declare(specs);
  return specs;
}

Result<void> check_fits(actors::RankWorld& world, const TrainerOptions& options, const TensorRank* tensor,
                        std::size_t device_bytes) {
  auto specs = parameters_of_rank(options, tensor);
  std::optional<std::size_t> stage_bytes;
  std::vector<actors::TrainerPass> passes;
  if (is_pipeline(options)) {
    const PipelinePlace place{world.rank(), world.world_size()};
    const auto cut = TRY(cut_of(options, place));
    const StageParameters parameters(options.model, parameter_table(options.model), cut);
    const auto schedule = TRY(schedule_of_rounds(options, TRY(deal_of(options, place))));
    specs = parameters.select(specs);
    passes = trainer_passes(schedule.passes[static_cast<std::size_t>(cut.stage)], parameters);
    stage_bytes = TRY(pipeline_bytes(options, place));
  }
  const auto plan = TRY(actors::plan_training(specs, options.session.training, world.world_size(),
                                              actors::unit_passes(passes)));
  const auto memory = core::memory_of(actors::RankProgram(plan, world.rank()).program());
  const auto bytes = [](std::int64_t count) { return static_cast<std::size_t>(count); };
  const auto model =
      tensor != nullptr ? config_of_share(options.model, tensor->table().share().size) : options.model;
  const auto pieces = static_cast<std::size_t>(options.tensor.context_parallel);
  const BatchShape shape{options.microbatch.batch, options.microbatch.length / pieces};
  auto need = memory_need(model, shape, options.arithmetic, world.device().kind());
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
    parameter.is_expert = spec.is_expert;
    if (!training.groups.empty()) parameter.group = whole ? kMatrices : kOthers;
    specs.push_back(std::move(parameter));
  }
  return specs;
}

Result<std::unique_ptr<DistributedTrainer>> DistributedTrainer::create(
    actors::RankWorld& world, const TrainerOptions& of_job, const Corpus& corpus,
    std::optional<std::size_t> device_bytes) {
  const auto device = world.device().kind();
  TrainerOptions options = with_context_group(of_job);
  options.model = model_of_rank(options.model, options.session.training, world.rank());
  TRY(check_model(options.model, options.microbatch, options.arithmetic, device));
  auto context = TRY(ContextRank::create(of_job, world.rank(), device));
  auto tensor = TRY(TensorRank::create(of_job, world.rank(), device));
  if (is_pipeline(options)) TRY(check_pipeline(options, world.world_size(), device));
  if (device_bytes) TRY(check_fits(world, options, tensor.get(), *device_bytes));
  std::unique_ptr<DistributedTrainer> trainer(new DistributedTrainer(world, options, corpus));
  trainer->tensor_ = std::move(tensor);
  trainer->context_ = std::move(context);
  TRY(trainer->open(world));
  return trainer;
}

DistributedTrainer::DistributedTrainer(actors::RankWorld& world, const TrainerOptions& options,
                                       const Corpus& corpus)
    : options_(options), device_(&world.device()), corpus_(&corpus), batch_(options.microbatch) {}

Result<void> DistributedTrainer::open(actors::RankWorld& world) {
  // The host's model is made before the job is joined: what does not fit here need not hold up the others.
  const bool on_host = device_->kind() != gpu::DeviceKind::cuda;
  auto specs = parameters_of_rank(options_, tensor_.get());
  kept_ = parameter_table(options_.model).specs;
  if (is_pipeline(options_)) {
    TRY(make_pipeline(world, specs));
  } else if (on_host) {
    model_ = TRY(make_model());
  }
  const bool has_experts = options_.model.experts.count > 0;
  if (has_experts) options_.session.groups.push_back(all_ranks(world.world_size()));
  session_ = TRY(actors::Session::join(world, options_.session, specs));
  if (tensor_) TRY(tensor_->open(*session_));
  if (context_) TRY(context_->open(*session_));
  if (!on_host) {
    compute_ = TRY(session_->compute_stream());
    model_ = TRY(make_model());
  }
  if (has_experts) {
    all_ranks_ = TRY(session_->group(kAllRanks));
    expert_load_ = ExpertTally(options_.model.layers, options_.model.experts.count);
  }
  if (pipeline_) {
    TRY(pipeline_->open(*session_, *device_, *corpus_));
  } else {
    peers_ = TRY(SessionPeers::create(*session_, model_->table()));
  }
  gradients_.resize(specs.size());
  TRY(write_initial_values());
  return on_host ? Result<void>{} : warm_up();
}

Result<std::unique_ptr<TrainableModel>> DistributedTrainer::make_model() {
  if (tensor_) return tensor_->make_model(options_);
  if (context_) return context_->make_model(options_);
  if (options_.tensor.slices > 1) return create_sliced_model(options_, device_->kind());
  return create_model(options_.model, options_.microbatch, options_.arithmetic, *device_, compute_);
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
  options_.session.passes = pipeline_->passes();
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
      const core::ElementRange range{first, first + static_cast<std::int64_t>(values.size())};
      read = tensor_ ? read_part(initial, tensor_->table(), i, range, values)
                     : initial.read(spec, range, values);
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
  hooks.peers = peers_.get();
  return hooks;
}

Result<double> DistributedTrainer::run_lane(core::Lane lane) {
  TRY(session_->begin_lane(lane));
  for (std::uint32_t i = 0; i < gradients_.size(); ++i) {
    const bool is_spread = peers_ != nullptr && model_->table().specs[i].is_expert;
    gradients_[i] = is_spread ? nullptr : TRY(session_->gradient_memory({i})).as<float>().data();
  }
  if (peers_) TRY(peers_->begin_lane());
  const auto index = [](std::size_t p) { return core::ParameterIndex{static_cast<std::uint32_t>(p)}; };
  Result<void> ready;  // the first failure
  StepHooks hooks{.before_use = [&](std::size_t p) { return before_use(index(p)); },
                  .begin_backward = [&] { return session_->begin_backward(); },
                  .gradient_ready =
                      [&](std::size_t p) {
                        if (auto told = session_->gradient_ready(index(p)); !told && ready) ready = told;
                      },
                  .loss_scale = session_->loss_scale(),
                  .peers = peers_.get()};
  const int microbatches = session_->training().microbatches;
  for (int m = 0; m < microbatches; ++m) {
    TRY(session_->begin_microbatch(m));
    hooks.last_microbatch = m + 1 == microbatches;
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
  auto restored = TRY(session_->restore(options));
  const auto* load = restored ? restored->common.find("expert_load") : nullptr;
  if (load != nullptr && all_ranks_ != nullptr) TRY(expert_load_.set_value(*load));
  told_load_ = expert_load_;
  return restored;
}

Result<void> DistributedTrainer::sum_expert_load() {
  if (all_ranks_ == nullptr) return {};
  const auto counts = (pipeline_ ? pipeline_->take_expert_tally() : model_->take_expert_tally()).counts();
  const auto bytes = std::as_bytes(std::span(counts));
  const auto buffer = TRY(device_->allocate(bytes.size()));
  const auto sums = buffer.view().as<std::int64_t>();
  std::copy(counts.begin(), counts.end(), sums.begin());
  TRY(all_ranks_->wait(TRY(all_ranks_->all_reduce(buffer.view(), core::DType::i64))));
  ExpertTally tally(options_.model.layers, options_.model.experts.count);
  tally.set_counts(sums);
  expert_load_ += tally;
  return {};
}

Result<ExpertTally> DistributedTrainer::take_expert_load() {
  TRY(sum_expert_load());
  const auto since = expert_load_ - told_load_;
  told_load_ = expert_load_;
  return since;
}

Result<core::Value> DistributedTrainer::description() {
  using core::Value;
  const auto number = [](auto value) { return Value(static_cast<std::int64_t>(value)); };
  const auto& training = session_->training();
  const auto& schedule = options_.schedule;
  TRY(sum_expert_load());
  Value::Map map{{"program", "gpt"},
                 {"seed", number(options_.seed)},
                 {"lanes", number(training.lanes)},
                 {"microbatches", number(training.microbatches)},
                 {"sequences", number(options_.microbatch.batch)},
                 {"context", number(options_.microbatch.length)},
                 {"schedule", Value::Map{{"peak", schedule.peak},
                                         {"floor", schedule.floor},
                                         {"warmup", schedule.warmup.value},
                                         {"total", schedule.total.value}}}};
  const auto saved = expert_load_.counts().size();
  if (saved > 0 && saved <= kMostSavedCounts) map.set("expert_load", expert_load_.value());
  return Value(std::move(map));
}

Result<void> DistributedTrainer::save() {
  TRY(session_->save(TRY(description())));
  return {};
}

Result<void> DistributedTrainer::save_local() {
  TRY(session_->save_local(TRY(description())));
  return {};
}

Result<void> DistributedTrainer::export_model(const ExportOptions& options) {
  if (session_->training().expert_parallel > 1) {
    return core::fail(core::Errc::unavailable,
                      "experts of {} ranks cannot be exported yet; save a checkpoint, and export from one "
                      "that is resumed with --expert-parallel 1",
                      session_->training().expert_parallel);
  }
  TRY(session_->begin_evaluation());
  std::optional<core::ParameterIndex> gathered;
  std::span<const float> whole;
  TRY(gpt::export_model(
      options_.model,
      [&](std::size_t place, core::ElementRange range, std::span<float> values) -> Result<void> {
        const core::ParameterIndex parameter{static_cast<std::uint32_t>(place)};
        if (!tensor_) return read_parameter(parameter, range, values);
        if (gathered != parameter) whole = TRY(whole_parameter(parameter));
        gathered = parameter;
        std::copy_n(whole.begin() + range.start, values.size(), values.begin());
        return {};
      },
      options));
  return session_->end_evaluation();
}

// An export reads parameters in the order of the table, so this is what it waits for.
Result<void> DistributedTrainer::hand_over_parameters() {
  TRY(session_->begin_evaluation());
  if (pipeline_) TRY(pipeline_->hand_over_parameters());
  for (std::uint32_t i = 0; !pipeline_ && i < readable_.size(); ++i) {
    TRY(session_->before_use({i}));
    if (tensor_) TRY(whole_parameter({i}));
  }
  return session_->end_evaluation();
}

Result<std::span<const float>> DistributedTrainer::whole_parameter(core::ParameterIndex parameter) {
  TRY(session_->before_use(parameter));
  return tensor_->whole(parameter.value, TRY(session_->parameter(parameter)));
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
  if (peers_) {
    TRY(peers_->visit_all(model_->config(), [&](std::span<const float> values) {
      hash = core::hash64(std::as_bytes(values), hash);
    }));
    TRY(session_->end_evaluation());
    return hash;
  }
  if (pipeline_) hash = TRY(pipeline_->parameter_hash());
  for (std::uint32_t i = 0; !pipeline_ && i < readable_.size(); ++i) {
    if (tensor_) {
      hash = core::hash64(std::as_bytes(TRY(whole_parameter({i}))), hash);
      continue;
    }
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
