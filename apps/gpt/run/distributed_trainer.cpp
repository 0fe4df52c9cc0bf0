#include "apps/gpt/run/distributed_trainer.hpp"

#include <algorithm>
#include <utility>

#include "actors/planes/step/rank_program.hpp"
#include "actors/planes/step/training_plan.hpp"
#include "actors/shell/rank_world.hpp"
#include "apps/gpt/model/expert_state.hpp"
#include "apps/gpt/rank/session_peers.hpp"
#include "core/errors.hpp"
#include "core/program/memory.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

/// What the session's program sends.
std::vector<AxisTraffic> data_traffic(const actors::Session& session, core::Rank rank) {
  AxisTraffic data{"data", {}}, verdict{"verdict", {}}, tensor{"tensor", {}};
  for (const auto& one : core::traffic_of(actors::RankProgram(session.plan(), rank).program())) {
    const auto group = one.communicator.group;
    auto& axis = group == core::GroupKind::world ? verdict : group == core::GroupKind::tp ? tensor : data;
    axis.sent.launches += one.launches;
    axis.sent.bytes += one.bytes;
  }
  if (tensor.sent.launches == 0) return {data, verdict};
  return {data, verdict, tensor};
}

/// Adds to what the program sends along the same axis.
void add(std::vector<AxisTraffic>& traffic, const AxisTraffic& more) {
  const auto found = std::find_if(traffic.begin(), traffic.end(),
                                  [&](const AxisTraffic& one) { return one.axis == more.axis; });
  if (found == traffic.end()) {
    traffic.push_back(more);
    return;
  }
  found->sent.launches += more.sent.launches;
  found->sent.bytes += more.sent.bytes;
}

Result<void> check_fits(actors::RankWorld& world, const TrainerOptions& options, const RankModel& model,
                        std::size_t device_bytes) {
  const auto plan = TRY(actors::plan_training(model.parameters(), options.session.training,
                                              world.world_size(), model.passes()));
  const auto memory = core::memory_of(actors::RankProgram(plan, world.rank()).program());
  const auto bytes = [](std::int64_t count) { return static_cast<std::size_t>(count); };
  const std::size_t activations = TRY(model.bytes());
  return check_memory({.parameters = bytes(memory.parameters + memory.parameter_pool),
                       .gradients = bytes(memory.gradients + memory.gradient_pool + memory.staging),
                       .optimizer = bytes(memory.main + memory.optimizer + memory.scratch),
                       .activations = activations},
                      device_bytes);
}

}  // namespace

Result<std::unique_ptr<DistributedTrainer>> DistributedTrainer::create(
    actors::RankWorld& world, const TrainerOptions& of_job, const Corpus& corpus,
    std::optional<std::size_t> device_bytes) {
  TrainerOptions options = of_job;
  options.model = TRY(model_of_rank(options.model, options.session.training, world.rank()));
  if (options.model.experts.parts * options.model.experts.columns > 1 &&
      world.device().kind() == gpu::DeviceKind::cuda)
    return core::fail(
        core::Errc::unavailable,
        "--expert-tensor-parallel {} with --tensor-parallel {}: on GPUs an expert is cut as its "
        "layer is; leave out --expert-tensor-parallel, or use --device host",
        options.session.training.expert_tensor_parallel, options.session.training.tensor_parallel);
  const ExpertConfig& experts = options.model.experts;
  std::shared_ptr<std::vector<float>> biases;
  if (experts.count > 0 && experts.bias_rate > 0) {
    biases = std::make_shared<std::vector<float>>(options.model.layers * experts.count);
    options.model.experts.biases = biases;
  }
  options.session.training.experts = expert_layers(options.model, options.microbatch.rows());
  TRY(check_model(options.model, options.microbatch, options.arithmetic, world.device().kind()));
  std::unique_ptr<DistributedTrainer> trainer(new DistributedTrainer(world, options, corpus));
  trainer->biases_ = std::move(biases);
  TrainerOptions of_model = of_job;
  of_model.model = options.model;
  trainer->model_ = TRY(RankModel::create(world, of_model));
  if (device_bytes) TRY(check_fits(world, options, *trainer->model_, *device_bytes));
  TRY(trainer->open(world));
  return trainer;
}

DistributedTrainer::DistributedTrainer(actors::RankWorld& world, const TrainerOptions& options,
                                       const Corpus& corpus)
    : options_(options), device_(&world.device()), corpus_(&corpus) {}

DistributedTrainer::~DistributedTrainer() {
  if (model_) model_->close();
}

Result<void> DistributedTrainer::open(actors::RankWorld& world) {
  TRY(model_->prepare());
  auto session = options_.session;
  if (options_.loss_average == LossAverage::tokens)
    session.training.loss_divisor = static_cast<double>(options_.microbatch.rows());
  for (auto& group : model_->groups()) session.groups.push_back(std::move(group));
  session.passes = model_->passes();
  for (auto& operation : model_->operations()) session.operations.push_back(std::move(operation));
  session_ = TRY(actors::Session::join(world, session, model_->parameters()));
  TRY(model_->open(*session_, *corpus_));
  traffic_of_data_ = data_traffic(*session_, world.rank());
  find_groups();
  told_load_ = TRY(expert_load(*session_, options_.model));
  recovered_ = TRY(session_->recover());
  if (!recovered_) TRY(write_initial_values());
  return model_->warm_up();
}

Result<void> DistributedTrainer::write_initial_values() {
  const RandomValues random(options_.seed);
  const InitialValues& initial = options_.initial != nullptr ? *options_.initial : random;
  core::ParameterIndex index{0};
  for (const std::size_t place : model_->places()) {
    Result<void> read;
    TRY(session_->write_parameter(index, [&](std::int64_t first, std::span<float> values) {
      const core::ElementRange range{first, first + static_cast<std::int64_t>(values.size())};
      read = read_part(initial, model_->table(), place, range, values);
    }));
    TRY(read);
    index.value += 1;
  }
  return {};
}

std::int64_t DistributedTrainer::tokens_per_step() const {
  const auto& training = session_->training();
  return static_cast<std::int64_t>(options_.microbatch.batch * options_.microbatch.length) * training.lanes *
         training.microbatches;
}

Result<actors::StepOutcome> DistributedTrainer::step(std::uint32_t wishes) {
  const auto before = sent_by_groups();
  TRY(session_->begin_step(learning_rate_of(session_->next_step())));
  TRY(model_->play_lanes());
  TRY(corpus_->check_unchanged());
  if (options_.model.experts.count > 0)
    TRY(count_tokens(*session_, options_.model, model_->take_expert_tally()));
  auto outcome = TRY(session_->finish_step({}, wishes));
  TRY(read_biases());
  traffic_ = traffic_of_data_;
  auto after = sent_by_groups();
  for (std::size_t i = 0; i < after.size(); ++i) {
    after[i].sent.launches -= before[i].sent.launches;
    after[i].sent.bytes -= before[i].sent.bytes;
    add(traffic_, after[i]);
  }
  return outcome;
}

void DistributedTrainer::find_groups() {
  const std::pair<const char*, const char*> known[] = {
      {"tensor", "tp"}, {"context", "cp"}, {"experts", "ep"}, {"pipeline", "pp"}};
  for (const auto& [axis, name] : known) {
    if (const auto group = session_->group(name)) groups_.emplace_back(axis, *group);
  }
  for (const auto& own : model_->groups()) {
    if (const auto group = session_->group(own.name)) groups_.emplace_back("pipeline", *group);
  }
}

std::vector<AxisTraffic> DistributedTrainer::sent_by_groups() const {
  std::vector<AxisTraffic> traffic;
  for (const auto& [axis, group] : groups_) {
    if (traffic.empty() || traffic.back().axis != axis) traffic.push_back({axis, {}});
    const auto sent = group->sent();
    traffic.back().sent.launches += sent.launches;
    traffic.back().sent.bytes += sent.bytes;
  }
  return traffic;
}

Result<std::optional<actors::Restored>> DistributedTrainer::resume(const actors::RestoreOptions& options) {
  model_->forget_copies();
  auto restored = TRY(session_->restore(options));
  const auto* bias = restored ? restored->common.find("router_bias") : nullptr;
  if (restored && (biases_ != nullptr) != (bias != nullptr))
    return core::fail(
        core::Errc::mismatch,
        "the checkpoint has {} of routers, and this run has {}; give --bias-rate as the run that "
        "saved it",
        bias != nullptr ? "biases" : "no biases", biases_ ? "them" : "none");
  if (restored) TRY(take_earlier_state(*session_, options_.model, restored->common));
  TRY(read_biases());
  told_load_ = TRY(expert_load(*session_, options_.model));
  return restored;
}

Result<void> DistributedTrainer::read_biases() {
  return biases_ ? gpt::read_biases(*session_, options_.model, *biases_) : Result<void>{};
}

Result<ExpertTally> DistributedTrainer::take_expert_load() {
  const auto all = TRY(expert_load(*session_, options_.model));
  const auto since = all - told_load_;
  told_load_ = all;
  return since;
}

Result<core::Value> DistributedTrainer::description() {
  using core::Value;
  const auto number = [](auto value) { return Value(static_cast<std::int64_t>(value)); };
  const auto& training = session_->training();
  const auto& schedule = options_.schedule;
  Value::Map map{{"program", "gpt"},
                 {"seed", number(options_.seed)},
                 {"lanes", number(training.lanes)},
                 {"microbatches", number(training.microbatches)},
                 {"sequences", number(options_.microbatch.batch)},
                 {"context", number(options_.microbatch.length)},
                 {"loss_average", std::string(name_of(options_.loss_average))},
                 {"schedule", Value::Map{{"peak", schedule.peak},
                                         {"floor", schedule.floor},
                                         {"warmup", schedule.warmup.value},
                                         {"total", schedule.total.value}}}};
  if (!options_.files.config.empty()) map.set("model", options_.files.value());
  if (options_.settings.as_map() != nullptr) map.set("settings", options_.settings);
  // Their values are tensors of the session's.
  if (biases_) map.set("router_bias", std::string("in tensors"));
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
  TRY(session_->begin_evaluation());
  TRY(gpt::export_model(
      model_of_all(options_.model),
      [&](std::size_t place, core::ElementRange range, std::span<float> values) {
        return model_->read_parameter(place, range, values);
      },
      options));
  return session_->end_evaluation();
}

// An export reads parameters in the order of the table, so it waits for them in this order.
Result<void> DistributedTrainer::hand_over_parameters() {
  TRY(session_->begin_evaluation());
  TRY(model_->hand_over_parameters());
  return session_->end_evaluation();
}

Result<std::uint64_t> DistributedTrainer::parameter_hash() {
  TRY(session_->begin_evaluation());
  const auto hash = TRY(model_->parameter_hash());
  TRY(session_->end_evaluation());
  return hash;
}

Result<std::optional<double>> DistributedTrainer::evaluate(std::size_t batches) {
  TRY(session_->begin_evaluation());
  const auto loss = TRY(model_->evaluate(batches));
  TRY(corpus_->check_unchanged());
  TRY(session_->end_evaluation());
  return loss;
}

Result<std::span<const float>> DistributedTrainer::logits(TokenSpan tokens) {
  TRY(session_->begin_evaluation());
  const auto found = TRY(model_->logits(tokens));
  TRY(session_->end_evaluation());
  return found;
}

}  // namespace troupe::apps::gpt
