#include "apps/gpt/pipeline/pipeline_trainer.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/schedule/check_schedule.hpp"

namespace troupe::apps::gpt {

using core::PassKind;
using core::Result;

namespace {

/// Of whole backwards a half each for inputs and weights.
core::PassDurations mean_durations(const core::ScheduleRun& run) {
  std::map<PassKind, std::pair<double, int>> sums;
  for (const auto& stage : run.stages) {
    for (const auto& [pass, start, end] : stage) {
      auto& [sum, count] = sums[pass.kind];
      sum += end - start;
      count += 1;
    }
  }
  const auto mean = [&](PassKind kind) {
    const auto [sum, count] = sums[kind];
    return count > 0 ? sum / count : 0;
  };
  const double half = mean(PassKind::backward) / 2;
  return {.forward = mean(PassKind::forward),
          .backward_input = mean(PassKind::backward_input) + half,
          .backward_weight = mean(PassKind::backward_weight) + half};
}

}  // namespace

Result<std::unique_ptr<PipelineTrainer>> PipelineTrainer::create(const TrainerOptions& options,
                                                                 PipelinePlace place, gpu::Device& device,
                                                                 std::unique_ptr<TensorRank> share) {
  TRY(check_pipeline(options, place.world, device.kind()));
  auto cut = TRY(cut_of(options, place));
  auto schedule = TRY(schedule_of(options, place));
  auto rounds = TRY(schedule_of_rounds(options, TRY(deal_of(options, place))));
  const auto stage = static_cast<std::size_t>(cut.stage);
  std::unique_ptr<PipelineTrainer> trainer(
      new PipelineTrainer(options, place, std::move(cut), std::move(schedule), device, std::move(share)));
  trainer->all_passes_ = std::move(rounds.passes[stage]);
  return trainer;
}

PipelineTrainer::PipelineTrainer(const TrainerOptions& options, PipelinePlace place, StageCut cut,
                                 core::PipelineSchedule schedule, gpu::Device& device,
                                 std::unique_ptr<TensorRank> share)
    : options_(options),
      place_(place),
      cut_(std::move(cut)),
      schedule_(std::move(schedule)),
      device_(device),
      share_(std::move(share)),
      parameters_(options_.model, table().part(), cut_),
      all_model_(model_of_all(options_.model)),
      all_table_(parameter_table(all_model_)),
      all_parameters_(all_model_, all_table_, cut_),
      runner_(schedule_, cut_.stage),
      batches_(static_cast<std::size_t>(runner_.slots().activations), Batch(options_.microbatch)),
      readable_(table().size()),
      gradients_(table().size()) {}

std::vector<core::ParameterSpec> PipelineTrainer::parameters() const {
  return parameters_.select(session_parameters(table(), options_));
}

Result<void> PipelineTrainer::prepare() {
  const auto shape = stage_shape(options_, place_, schedule_, cut_.stage);
  model_ = TRY(StageModel::create(options_.model, cut_, shape, share_->group()));
  return {};
}

std::vector<actors::TrainerGroupSpec> PipelineTrainer::groups() const {
  auto groups = link_groups(place_.world, cut_.stages, cut_.chunks() > 1);
  if (options_.model.experts.count == 0) return groups;
  for (auto& group : RouteLosses::groups(place_.world, cut_.stages)) groups.push_back(std::move(group));
  return groups;
}

Result<void> PipelineTrainer::open(actors::Session& session, const Corpus& corpus) {
  session_ = &session;
  corpus_ = &corpus;
  TRY(share_->open(session));
  stages_ = TRY(session.group("pp"));
  links_ = TRY(SessionLinks::open(session, cut_.stages, cut_.stage, cut_.chunks() > 1));
  lanes_.emplace(session, parameters_, model_->table());
  CHECK(lanes_->microbatches() == schedule_.microbatches, "the schedule has the microbatches of the lanes");
  if (options_.model.experts.count > 0) {
    std::vector<StageCut> cuts;
    for (int stage = 0; stage < cut_.stages; ++stage)
      cuts.push_back(TRY(cut_model(options_.model, options_.pipeline, cut_.stages, stage)));
    route_losses_ = TRY(RouteLosses::open(session, options_.model, cut_, cuts));
    peers_ = TRY(SessionPeers::create(session, options_.model, model_->table(), parameters_.places()));
    take_expert_tally();
  }
  if (!options_.model.tied_embeddings) return {};
  const bool is_ordered = options_.session.training.numerics == core::Numerics::ordered;
  const auto how = is_ordered ? HeadGradient::factors : HeadGradient::sum;
  const HeadShape shape = head_shape(options_);
  if (cut_.is_first()) owner_.emplace(*stages_, how, shape);
  if (cut_.is_last()) copy_.emplace(*stages_, how, shape);
  return {};
}

Result<void> PipelineTrainer::play_lanes() {
  taken_.reset();
  lanes_->begin_step();
  began_.clear();
  ended_.clear();
  begun_.reset();
  if (lanes_->by_passes()) TRY(begin_pass(all_passes_.front()));  // which may read what is copied
  TRY(refresh_copies());
  if (route_losses_) TRY(route_losses_->begin_step(schedule_));
  if (owner_) TRY(owner_->begin_step(schedule_.microbatches));
  if (copy_) copy_->begin_step(schedule_.microbatches);
  TRY(runner_.run(*this, *links_));
  if (route_losses_) TRY(route_losses_->settle());
  return settle();
}

ExpertTally PipelineTrainer::take_expert_tally() {
  return std::exchange(tally_, {options_.model.layers, options_.model.experts.count});
}

/// Once per step, before the first use of its values by another stage than their own.
Result<void> PipelineTrainer::refresh_copies() {
  if (!options_.model.tied_embeddings || copy_of_ == session_->next_step()) return {};
  copy_of_ = session_->next_step();
  const std::size_t place = model_->table().embedding;
  if (owner_) {
    TRY(before_use(place));
    TRY(owner_->give_values({readable_[place], model_->table().specs[place].elements()}));
    if (lanes_->by_passes()) TRY(owner_->settle());  // before another unit has the memory
  }
  return copy_ ? copy_->take_values() : Result<void>{};
}

Result<void> PipelineTrainer::settle() {
  if (owner_) TRY(owner_->settle());
  return copy_ ? copy_->settle() : Result<void>{};
}

Result<void> PipelineTrainer::before_use(std::size_t place) {
  const auto index = parameters_.index(place);
  if (!index) {
    CHECK(copy_ && place == model_->table().embedding, "a stage reads its own parameters, or its copy");
    readable_[place] = TRY(copy_->copied());
    return {};
  }
  TRY(session_->before_use(*index));
  readable_[place] = TRY(session_->parameter_memory(*index)).as<const float>().data();
  return {};
}

StepHooks PipelineTrainer::reading() {
  StepHooks hooks;
  hooks.before_use = [this](std::size_t place) { return before_use(place); };
  hooks.peers = peers_.get();
  return hooks;
}

StepHooks PipelineTrainer::adding(const core::PipelinePass& done, int slot) {
  StepHooks hooks;
  const std::size_t embedding = model_->table().embedding;
  hooks.before_use = [this, microbatch = done.microbatch, embedding](std::size_t place) -> Result<void> {
    TRY(before_use(place));
    if (!owner_ || place != embedding) return {};
    // After the output layer's gradient come those of the rows, as on one rank.
    return owner_->add_gradient(microbatch, gradients_[place]);
  };
  hooks.gradient_ready = [this, done, slot](std::size_t place) {
    if (parameters_.index(place)) return lanes_->ready(place);
    auto given = copy_->give_gradient(done.microbatch, model_->head_factors(done.chunk, slot));
    if (!given && given_) given_ = given;
  };
  hooks.loss_scale = session_->loss_scale();
  hooks.last_microbatch = lanes_->ends_lane(done.microbatch);
  hooks.peers = peers_.get();
  return hooks;
}

Result<void> PipelineTrainer::begin_pass(const core::PipelinePass& pass) {
  const auto found = std::find(all_passes_.begin(), all_passes_.end(), pass);
  const auto index = static_cast<std::size_t>(found - all_passes_.begin());
  if (begun_ == index) return {};
  begun_ = index;
  return session_->begin_pass(index);
}

Result<void> PipelineTrainer::run(const core::PipelinePass& pass, PassSlots slots) {
  began_.push_back(device_.now().count());
  if (lanes_->by_passes()) TRY(begin_pass(pass));
  TRY(pass.kind == PassKind::forward ? forward(pass, slots) : backward(pass, slots.activations));
  ended_.push_back(device_.now().count());
  return {};
}

Result<void> PipelineTrainer::forward(const core::PipelinePass& done, PassSlots slots) {
  const int slot = slots.activations;
  Batch& batch = batches_[static_cast<std::size_t>(slot)];
  const auto [lane, index] = lanes_->place_of(done.microbatch);
  const bool has_text = begins(done.chunk) || ends(done.chunk);
  if (has_text) {
    batch.fill_at_random(corpus_->training(),
                         {options_.seed, session_->next_step(), lane, static_cast<std::uint32_t>(index)});
  }
  const StepHooks hooks = reading();
  TRY(model_->forward(done.chunk, slots, pass(hooks), batch.tokens()));
  if (route_losses_) {
    tally_.add(model_->routes(done.chunk, slot));
    TRY(route_losses_->give(done, model_->routes(done.chunk, slot)));
  }
  if (!ends(done.chunk)) return {};
  const float words = TRY(model_->loss(done.chunk, slot, pass(hooks), batch.targets()));
  lanes_->set_loss(done.microbatch,
                   route_losses_ ? TRY(route_losses_->total(done.microbatch, words)) : words);
  return {};
}

Result<void> PipelineTrainer::backward(const core::PipelinePass& done, int slot) {
  const Batch& batch = batches_[static_cast<std::size_t>(slot)];
  const auto [kind, microbatch, chunk] = done;
  const StepHooks hooks = adding(done, slot);
  const bool adds = kind != PassKind::backward_input;
  if (adds) TRY(lanes_->begin(chunk, microbatch, gradients_));
  if (adds && peers_) TRY(peers_->begin_lane());
  if (kind == PassKind::backward_weight) {
    TRY(model_->backward_weight(slot, pass(hooks)));
  } else {
    if (copy_ && ends(chunk)) gradients_[model_->table().head] = TRY(copy_->gradient(microbatch));
    TRY(model_->backward(chunk, slot, pass(hooks), batch.tokens(), batch.targets()));
    TRY(given_);
  }
  return adds ? lanes_->end(chunk, microbatch) : Result<void>{};
}

Result<void> PipelineTrainer::pass_through(const std::function<Result<void>(int chunk)>& compute,
                                           std::size_t rows) {
  const std::size_t elements = model_->own_rows(rows) * options_.model.width;
  for (int chunk = 0; chunk < cut_.chunks(); ++chunk) {
    const core::PipelinePass forward{PassKind::forward, 0, chunk};
    if (const auto from = core::receives(schedule_, cut_.stage, forward); from && elements > 0)
      TRY(links_->wait(*from, TRY(links_->receive(*from, input(0).first(elements)))));
    TRY(compute(chunk));
    if (const auto to = core::sends(schedule_, cut_.stage, forward); to && elements > 0)
      TRY(links_->wait(*to, TRY(links_->send(*to, output(chunk, 0).first(elements)))));
  }
  return {};
}

Result<void> PipelineTrainer::broadcast(std::span<std::byte> bytes, int stage) {
  return stages_->wait(TRY(stages_->broadcast(gpu::view_of(bytes), core::DType::u8, stage)));
}

Result<double> PipelineTrainer::evaluate(std::size_t batches) {
  TRY(refresh_copies());
  const StepHooks hooks = reading();
  Batch& batch = batches_.front();
  double total = 0;
  for (std::size_t i = 0; i < batches; ++i) {
    batch.fill_evenly(corpus_->evaluation(), i, batches);
    const auto compute = [&](int chunk) -> Result<void> {
      TRY(model_->forward(chunk, {}, pass(hooks), batch.tokens()));
      if (ends(chunk)) total += TRY(model_->loss(chunk, 0, pass(hooks), batch.targets()));
      return {};
    };
    TRY(pass_through(compute, options_.microbatch.rows()));
  }
  TRY(settle());
  double mean = total / static_cast<double>(batches);
  TRY(broadcast(std::as_writable_bytes(std::span(&mean, 1)), cut_.stages - 1));
  return mean;
}

Result<std::span<const float>> PipelineTrainer::logits(TokenSpan tokens) {
  TRY(refresh_copies());
  const StepHooks hooks = reading();
  answer_.resize(options_.model.vocabulary);
  taken_.reset();
  const auto compute = [&](int chunk) -> Result<void> {
    TRY(model_->forward_sequence(chunk, tokens.size(), pass(hooks), tokens));
    if (!ends(chunk)) return {};
    const auto found = TRY(model_->last_logits(chunk, tokens.size(), pass(hooks)));
    std::copy(found.begin(), found.end(), answer_.begin());
    return {};
  };
  TRY(pass_through(compute, tokens.size()));
  TRY(settle());
  TRY(broadcast(std::as_writable_bytes(std::span(answer_)), cut_.stages - 1));
  return std::span<const float>(answer_);
}

Result<std::optional<PipelineTimeline>> PipelineTrainer::timeline() {
  if (ended_.empty()) return std::optional<PipelineTimeline>{};
  PipelineTimeline timeline;
  timeline.schedule = {options_.pipeline.schedule, schedule_.stages, schedule_.chunks,
                       schedule_.microbatches};
  auto first = std::numeric_limits<std::int64_t>::max();
  for (int stage = 0; stage < schedule_.stages; ++stage) {
    const auto& passes = schedule_.passes[static_cast<std::size_t>(stage)];
    std::vector<std::int64_t> times(2 * passes.size());
    CHECK(stage != cut_.stage || ended_.size() == passes.size(), "the step was played to its end");
    if (stage == cut_.stage)
      std::copy(ended_.begin(), ended_.end(), std::copy(began_.begin(), began_.end(), times.begin()));
    TRY(broadcast(std::as_writable_bytes(std::span(times)), stage));
    first = std::min(first, times.front());
    auto& timed = timeline.run.stages.emplace_back();
    for (std::size_t i = 0; i < passes.size(); ++i)
      timed.push_back(
          {passes[i], static_cast<double>(times[i]), static_cast<double>(times[passes.size() + i])});
  }
  for (auto& stage : timeline.run.stages) {
    for (auto& pass : stage) {
      pass.start = (pass.start - static_cast<double>(first)) * 1e-6;
      pass.end = (pass.end - static_cast<double>(first)) * 1e-6;
    }
  }
  timeline.theory = core::theoretical_bubble_share(timeline.schedule, mean_durations(timeline.run));
  return std::optional(std::move(timeline));
}

int PipelineTrainer::stage_of(std::size_t place) const {
  for (int stage = 0; stage < cut_.stages; ++stage) {
    const auto cut = cut_model(options_.model, options_.pipeline, cut_.stages, stage);
    for (const ModelPart part : cut->parts) {
      const auto [begin, end] = parameters_of(all_model_, all_table_, part);
      if (place >= begin && place < end) return stage;
    }
  }
  CHECK(false, "every parameter is of a stage");
}

Result<std::uint64_t> PipelineTrainer::parameter_hash() {
  std::uint64_t hash = 0;
  const std::size_t count = all_table_.specs.size();
  for (std::size_t place = 0; place < count; ++place) {
    const int stage = stage_of(place);
    if (stage == cut_.stage) {
      hash = core::hash64(std::as_bytes(TRY(whole_parameter(place))), hash);
    }
    if (place + 1 < count && stage_of(place + 1) == stage) continue;
    TRY(broadcast(std::as_writable_bytes(std::span(&hash, 1)), stage));
  }
  return hash;
}

Result<void> PipelineTrainer::read_parameter(std::size_t place, core::ElementRange range,
                                             std::span<float> values) {
  const auto whole = TRY(take_parameter(place));
  std::copy_n(whole.begin() + range.start, values.size(), values.begin());
  return {};
}

Result<std::span<const float>> PipelineTrainer::take_parameter(std::size_t place) {
  if (taken_ == place) return whole_;
  if (all_parameters_.index(place)) {
    whole_ = TRY(whole_parameter(place));
  } else {
    answer_.resize(all_table_.specs[place].elements());
    TRY(stages_->wait(
        TRY(stages_->receive(gpu::view_of(std::span(answer_)), core::DType::f32, stage_of(place)))));
    whole_ = answer_;
  }
  taken_ = place;
  return whole_;
}

/// Of this stage.
Result<std::span<const float>> PipelineTrainer::whole_parameter(std::size_t place) {
  taken_.reset();
  const auto read = [&](std::size_t own) -> Result<std::span<const float>> {
    TRY(before_use(own));
    return share_->whole(own, {readable_[own], model_->table().specs[own].elements()});
  };
  return peers_ ? peers_->whole(place, read) : read(place);
}

Result<void> PipelineTrainer::hand_over_parameters() {
  const bool is_asked = stages_->members().front().value == 0;
  for (const std::size_t place : all_parameters_.places()) {
    const auto values = TRY(whole_parameter(place));
    if (!is_asked || cut_.is_first()) continue;
    TRY(stages_->wait(TRY(stages_->send(gpu::view_of(values), core::DType::f32, 0))));
  }
  return {};
}

}  // namespace troupe::apps::gpt
