#include "apps/gpt/rank/rank_model.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "apps/gpt/stage/models.hpp"
#include "core/errors.hpp"
#include "core/schedule/check_schedule.hpp"

namespace troupe::apps::gpt {

using core::PassKind;
using core::Result;

namespace {

Posting posting_over(const actors::TrainerGroup& stages) {
  return stages.runs_in_launch_order() ? Posting::in_one_order : Posting::at_once;
}

HeadGradient head_gradient(const TrainerOptions& options) {
  const bool is_ordered = options.session.training.numerics == core::Numerics::ordered;
  return is_ordered ? HeadGradient::factors : HeadGradient::sum;
}

HeadMessages head_messages(const TrainerOptions& options) {
  if (!options.model.tied_embeddings) return HeadMessages::none;
  return head_gradient(options) == HeadGradient::factors ? HeadMessages::each : HeadMessages::last;
}

}  // namespace

Result<std::unique_ptr<RankModel>> RankModel::create(actors::RankWorld& world,
                                                     const TrainerOptions& options) {
  gpu::Device& device = world.device();
  const PipelinePlace place{world.rank(), world.world_size()};
  auto context = TRY(ContextRank::create(options, place.rank, device.kind()));
  auto share = TRY(TensorRank::create(options, place.rank, device.kind()));
  const bool is_cut = options.session.training.pipeline_parallel > 1;
  if (is_cut) TRY(check_pipeline(options, place.world));
  auto cut = TRY(cut_of(options, place));
  auto schedule = TRY(schedule_of(options, place));
  std::vector<core::PipelinePass> passes;
  if (is_cut) {
    auto rounds = TRY(schedule_of_rounds(options, TRY(deal_of(options, place))));
    passes = std::move(rounds.passes[static_cast<std::size_t>(cut.stage)]);
  }
  std::unique_ptr<RankModel> model(new RankModel(options, place, std::move(cut), std::move(schedule), device,
                                                 std::move(share), std::move(context)));
  model->all_passes_ = std::move(passes);
  return model;
}

RankModel::RankModel(const TrainerOptions& options, PipelinePlace place, StageCut cut,
                     core::PipelineSchedule schedule, gpu::Device& device, std::unique_ptr<TensorRank> share,
                     std::unique_ptr<ContextRank> context)
    : options_(options),
      place_(place),
      cut_(std::move(cut)),
      schedule_(std::move(schedule)),
      device_(device),
      share_(std::move(share)),
      context_(std::move(context)),
      parameters_(options_.model, table().part(), cut_),
      all_model_(model_of_all(options_.model)),
      all_table_(parameter_table(all_model_)),
      all_parameters_(all_model_, all_table_, cut_),
      memory_(device),
      batches_(
          static_cast<std::size_t>(stage_shape(options_, place_, schedule_, cut_.stage).slots.activations),
          Batch(options_.microbatch)),
      readable_(table().size()),
      gradients_(table().size() * own_pieces()) {}

std::vector<core::ParameterSpec> RankModel::parameters() const {
  auto specs = session_parameters(table(), options_);
  return is_cut() ? parameters_.select(specs) : specs;
}

/// Declared where a lane's passes are not (decision 0017).
std::vector<core::DeclaredOperation> RankModel::operations() const {
  if (is_cut()) return {};
  const std::size_t rows = options_.microbatch.rows() / options_.model.experts.members;
  return expert_operations(options_.model, table().part(), rows, core::size_of(options_.arithmetic.dtype),
                           table().share().slices);
}

Result<void> RankModel::prepare() {
  return is_on_host() ? make_stage() : Result<void>{};
}

Result<void> RankModel::make_stage() {
  const auto shape = stage_shape(options_, place_, schedule_, cut_.stage);
  const auto at = share_->place(device_, memory_.compute());
  model_ = TRY(context_ ? context_->make_stage(options_, cut_, shape, at)
                        : create_stage(options_.model, cut_, shape, options_.arithmetic, at));
  return {};
}

std::vector<actors::TrainerGroupSpec> RankModel::groups() const {
  auto groups = link_groups(place_.world, cut_.stages, cut_.chunks() > 1);
  if (options_.model.experts.count == 0 || !is_on_host()) return groups;
  for (auto& group : RouteLosses::groups(place_.world, cut_.stages)) groups.push_back(std::move(group));
  return groups;
}

Result<void> RankModel::open(actors::Session& session, const Corpus& corpus) {
  session_ = &session;
  corpus_ = &corpus;
  if (!is_on_host()) memory_.use(TRY(session.compute_stream()));
  TRY(share_->open(session));
  if (context_) TRY(context_->open(session, memory_));
  if (!is_on_host()) TRY(make_stage());
  if (is_cut()) {
    stages_ = TRY(session.group("pp"));
    runner_.emplace(schedule_, cut_.stage, posting_over(*stages_), head_messages(options_));
  }
  links_ = TRY(SessionLinks::open(session, cut_.stages, cut_.stage, cut_.chunks() > 1, model_->dtype()));
  lanes_.emplace(session, parameters_, model_->table(), memory_, !is_cut());
  if (!is_cut()) schedule_.microbatches = lanes_->microbatches();
  CHECK(lanes_->microbatches() == schedule_.microbatches, "the schedule has the microbatches of the lanes");
  if (options_.model.experts.count > 0) TRY(open_experts());
  if (!options_.model.tied_embeddings || !is_cut()) return {};
  const auto how = head_gradient(options_);
  const HeadShape shape = head_shape(options_);
  if (cut_.is_first()) owner_ = TRY(EmbeddingOwner::create(*stages_, memory_, how, shape));
  if (cut_.is_last()) copy_ = TRY(EmbeddingCopy::create(*stages_, memory_, how, shape));
  return {};
}

Result<void> RankModel::open_experts() {
  peers_ =
      TRY(SessionPeers::create(*session_, options_.model, model_->table(), memory_, parameters_.places()));
  take_expert_tally();
  if (!is_on_host()) return {};
  std::vector<StageCut> cuts;
  for (int stage = 0; stage < cut_.stages; ++stage)
    cuts.push_back(TRY(cut_model(options_.model, options_.pipeline, cut_.stages, stage)));
  route_losses_ = TRY(RouteLosses::open(*session_, options_.model, cut_, cuts, own_pieces()));
  return {};
}

// A kernel is loaded when it first runs, and loading may wait for everything the device is running: for a
// collective, for example, whose other ranks wait for this one. So every kernel runs once before the first
// collective, and memory is allocated. The values do not matter, and sharded ones are not here yet.
Result<void> RankModel::warm_up() {
  if (is_on_host()) return {};
  TRY(lanes_->reserve(cut_.stages));
  std::size_t largest = 0;
  for (const auto& spec : model_->table().specs) largest = std::max(largest, spec.elements());
  const auto scratch = TRY(memory_.allocate((is_cut() ? 2 : 1) * largest * sizeof(float)));
  const auto values = scratch.view().subview(0, largest * sizeof(float));
  const std::vector<const std::byte*> parameters(readable_.size(), values.data);
  const std::vector<float*> gradients(gradients_.size(), values.as<float>().data());
  if (is_cut()) {
    memory_.zero(values);
    memory_.add(values, scratch.view().subview(values.bytes, values.bytes));
  }
  AbsentPeers absent(options_.model.experts, options_.microbatch.rows() / options_.model.experts.members,
                     gradients.front());
  StepHooks hooks;
  if (peers_ && peers_->passes() != nullptr) hooks.peers = &absent;
  return run_all_chunks({parameters, gradients, hooks});
}

/// Warms up, and returns once all of it is done.
Result<void> RankModel::run_all_chunks(const StagePass& pass) {
  Batch& batch = batches_.front();
  batch.fill_evenly(corpus_->evaluation(), 0, 1);
  const StageText text{batch.tokens(), batch.targets()};
  for (int chunk = 0; chunk < cut_.chunks(); ++chunk) {
    TRY(model_->forward(chunk, {}, pass, text));
    if (ends(chunk)) TRY(model_->loss(chunk, 0, pass, text));
    TRY(model_->backward(chunk, 0, pass, text));
    if (splits_backward(options_)) TRY(model_->backward_weight(0, pass));
    if (ends(chunk)) TRY(model_->take_losses(1));
  }
  return memory_.settle();
}

Result<void> RankModel::play_lanes() {
  taken_.reset();
  losses_taken_ = 0;
  average_ = StepAverage(options_, corpus_->training(), session_->next_step(), session_->training().lanes);
  lanes_->begin_step(average_);
  began_.clear();
  ended_.clear();
  begun_.reset();
  if (lanes_->by_passes()) TRY(begin_pass(all_passes_.front()));  // it may read what is copied
  TRY(refresh_copies());
  if (route_losses_) TRY(route_losses_->begin_step(schedule_));
  if (owner_) owner_->begin_step(schedule_.microbatches);
  if (copy_) copy_->begin_step(schedule_.microbatches);
  TRY(play_passes());
  if (route_losses_) TRY(route_losses_->settle());
  return settle();
}

Result<void> RankModel::play_passes() {
  if (runner_) return runner_->run(*this, *links_);
  for (int microbatch = 0; microbatch < schedule_.microbatches; ++microbatch) {
    TRY(run({PassKind::forward, microbatch, 0}, {0, 0}));
    TRY(run({PassKind::backward, microbatch, 0}, {0, 0}));
  }
  return {};
}

void RankModel::forget_copies() {
  copy_of_.reset();
  taken_.reset();
}

ExpertTally RankModel::take_expert_tally() {
  return std::exchange(tally_, {options_.model.layers, options_.model.experts.count});
}

/// Once per step, before the first use of its values by a stage other than their own.
Result<void> RankModel::refresh_copies() {
  if (!options_.model.tied_embeddings || copy_of_ == session_->next_step()) return {};
  copy_of_ = session_->next_step();
  const std::size_t place = model_->table().embedding;
  if (owner_) {
    TRY(before_use(place));
    TRY(owner_->give_values(TRY(parameter_memory(place))));
    if (lanes_->by_passes()) TRY(owner_->settle());  // before another unit uses the memory
  }
  return copy_ ? copy_->take_values() : Result<void>{};
}

Result<void> RankModel::settle() {
  if (owner_) TRY(owner_->settle());
  return copy_ ? copy_->settle() : Result<void>{};
}

Result<void> RankModel::before_use(std::size_t place) {
  const auto index = parameters_.index(place);
  if (!index) {
    CHECK(copy_ && place == model_->table().embedding, "a stage reads its own parameters, or its copy");
    readable_[place] = TRY(copy_->copied());
    return {};
  }
  TRY(session_->before_use(*index));
  readable_[place] = TRY(session_->parameter_memory(*index)).data;
  return {};
}

/// For a parameter of this stage, after before_use().
Result<gpu::ConstBufferView> RankModel::parameter_memory(std::size_t place) {
  return gpu::ConstBufferView(TRY(session_->parameter_memory(*parameters_.index(place))));
}

StepHooks RankModel::reading() {
  StepHooks hooks;
  hooks.before_use = [this](std::size_t place) { return before_use(place); };
  if (peers_) hooks.peers = peers_->passes();
  return hooks;
}

StepHooks RankModel::adding(const core::PipelinePass& done, int slot) {
  StepHooks hooks;
  const std::size_t embedding = model_->table().embedding;
  hooks.before_use = [this, microbatch = done.microbatch, embedding](std::size_t place) -> Result<void> {
    TRY(before_use(place));
    if (!owner_ || place != embedding) return {};
    // The rows' gradients are added after the output layer's, as on one rank.
    std::vector<float*> gradients;
    for (std::size_t piece = 0; piece < own_pieces(); ++piece)
      gradients.push_back(gradients_[piece * readable_.size() + place]);
    return owner_->add_gradient(microbatch, *model_, gradients);
  };
  hooks.gradient_ready = [this, done, slot](std::size_t place) {
    if (parameters_.index(place)) return lanes_->ready(place);
    auto kept = copy_->keep(done.microbatch, model_->head_factors(done.chunk, slot));
    if (!kept && kept_) kept_ = kept;
  };
  hooks.loss_scale = session_->loss_scale();
  average_.set(hooks);
  hooks.last_microbatch = lanes_->ends_lane(done.microbatch);
  if (peers_) hooks.peers = peers_->passes();
  return hooks;
}

Result<void> RankModel::begin_pass(const core::PipelinePass& pass) {
  const auto found = std::find(all_passes_.begin(), all_passes_.end(), pass);
  const auto index = static_cast<std::size_t>(found - all_passes_.begin());
  if (begun_ == index) return {};
  begun_ = index;
  return session_->begin_pass(index);
}

Result<void> RankModel::run(const core::PipelinePass& pass, PassSlots slots) {
  began_.push_back(device_.now().count());
  if (lanes_->by_passes()) TRY(begin_pass(pass));
  TRY(pass.kind == PassKind::forward ? forward(pass, slots) : backward(pass, slots.activations));
  ended_.push_back(device_.now().count());
  return {};
}

Result<void> RankModel::forward(const core::PipelinePass& done, PassSlots slots) {
  const int slot = slots.activations;
  Batch& batch = batches_[slot];
  const auto [lane, index] = lanes_->place_of(done.microbatch);
  const bool has_text = begins(done.chunk) || ends(done.chunk);
  if (has_text) {
    batch.fill_at_random(corpus_->training(),
                         {options_.seed, session_->next_step(), lane, static_cast<std::uint32_t>(index)});
  }
  TRY(lanes_->begin_forward(done.microbatch, gradients_));
  if (lanes_->is_whole() && peers_ && index == 0) TRY(peers_->begin_lane());
  StepHooks hooks = reading();
  average_.set(hooks);
  const StageText text{batch.tokens(), batch.targets()};
  TRY(model_->forward(done.chunk, slots, pass(hooks), text));
  for (std::size_t piece = 0; piece < own_pieces(); ++piece) {
    const auto routes = model_->routes(done.chunk, slot, piece);
    add_pass(tally_, routes);
    if (route_losses_) TRY(route_losses_->give(done, piece, routes));
  }
  if (!ends(done.chunk)) return {};
  for (std::size_t piece = 0; piece < own_pieces(); ++piece) {
    lanes_->set_targets(
        done.microbatch, piece,
        context_ ? context_->own_targets(options_.microbatch, piece, batch.targets()) : batch.target_count());
  }
  TRY(model_->loss(done.chunk, slot, pass(hooks), text));
  return route_losses_ ? take_losses_before(done.microbatch + 1) : Result<void>{};
}

/// Takes the losses of the microbatches before this one that have been through this stage.
Result<void> RankModel::take_losses_before(int microbatch) {
  const int first = std::exchange(losses_taken_, std::max(losses_taken_, microbatch));
  const auto losses = TRY(model_->take_losses(static_cast<std::size_t>(losses_taken_ - first)));
  auto loss = losses.begin();
  for (int i = first; i < losses_taken_; ++i) {
    for (std::size_t piece = 0; piece < own_pieces(); ++piece, ++loss)
      lanes_->set_loss(i, piece,
                       route_losses_ ? TRY(route_losses_->total(i, piece, loss->words)) : loss->total());
  }
  return {};
}

Result<void> RankModel::backward(const core::PipelinePass& done, int slot) {
  const Batch& batch = batches_[slot];
  const auto [kind, microbatch, chunk] = done;
  const StepHooks hooks = adding(done, slot);
  const bool adds = kind != PassKind::backward_input;
  if (adds) TRY(lanes_->begin(chunk, microbatch, gradients_));
  if (adds && peers_ && !lanes_->is_whole()) TRY(peers_->begin_lane());
  if (kind == PassKind::backward_weight) {
    TRY(model_->backward_weight(slot, pass(hooks)));
  } else {
    if (copy_ && ends(chunk)) gradients_[model_->table().head] = TRY(copy_->gradient(microbatch));
    TRY(model_->backward(chunk, slot, pass(hooks), {batch.tokens(), batch.targets()}));
    TRY(kept_);
  }
  // What it waits for was enqueued before this backward, so the device has work meanwhile.
  const bool ends_lane = adds && chunk == 0 && lanes_->ends_lane(microbatch);
  if (ends_lane && cut_.is_last()) TRY(take_losses_before(microbatch + 1));
  return adds ? lanes_->end(chunk, microbatch) : Result<void>{};
}

Result<void> RankModel::pass_through(const std::function<Result<void>(int chunk)>& compute,
                                     std::size_t own_rows) {
  const std::size_t bytes = own_rows * options_.model.width * core::size_of(model_->dtype());
  const auto first_rows = [&](StageRows rows) {
    for (auto& piece : rows) piece = piece.subview(0, bytes);
    return rows;
  };
  for (int chunk = 0; chunk < cut_.chunks(); ++chunk) {
    const core::PipelinePass forward{PassKind::forward, 0, chunk};
    if (const auto from = core::receives(schedule_, cut_.stage, forward); from && bytes > 0)
      TRY(links_->wait(*from, TRY(links_->receive(*from, first_rows(input(0))))));
    TRY(compute(chunk));
    if (const auto to = core::sends(schedule_, cut_.stage, forward); to && bytes > 0)
      TRY(links_->wait(*to, TRY(links_->send(*to, first_rows(output(chunk, 0))))));
  }
  return {};
}

Result<void> RankModel::broadcast(std::span<std::byte> bytes, int stage) {
  if (!is_cut()) return {};
  if (is_on_host())
    return stages_->wait(TRY(stages_->broadcast(gpu::view_of(bytes), core::DType::u8, stage)));
  const auto buffer = TRY(memory_.allocate(bytes.size()));
  if (stage == cut_.stage) TRY(memory_.write(bytes, buffer.view()));
  TRY(stages_->wait(TRY(stages_->broadcast(buffer.view(), core::DType::u8, stage))));
  return memory_.read(buffer.view(), bytes);
}

Result<std::optional<double>> RankModel::evaluate(std::size_t batches) {
  TRY(refresh_copies());
  TargetMean mean(options_.microbatch.rows());
  StepHooks hooks = reading();
  mean.set(hooks);
  Batch& batch = batches_.front();
  double total = 0;
  for (std::size_t i = 0; i < batches; ++i) {
    batch.fill_evenly(corpus_->evaluation(), i, batches);
    const auto compute = [&](int chunk) -> Result<void> {
      const StageText text{batch.tokens(), batch.targets()};
      TRY(model_->forward(chunk, {}, pass(hooks), text));
      if (!ends(chunk)) return {};
      return model_->loss(chunk, 0, pass(hooks), text);
    };
    TRY(pass_through(compute, model_->own_rows()));
    mean.count(batch.target_count());
  }
  if (cut_.is_last()) {
    std::vector<double> words;
    for (const StageLoss& loss : TRY(model_->take_losses(batches))) words.push_back(loss.words);
    for (std::size_t i = 0; i < words.size(); i += own_pieces())
      total += context_ ? TRY(context_->sum(std::span(words).subspan(i, own_pieces()))) : words[i];
  }
  TRY(settle());
  TRY(broadcast(std::as_writable_bytes(std::span(&total, 1)), cut_.stages - 1));
  mean.add(total);
  return mean.value();
}

Result<std::span<const float>> RankModel::logits(TokenSpan tokens) {
  TRY(refresh_copies());
  const StepHooks hooks = reading();
  answer_.resize(options_.model.vocabulary);
  taken_.reset();
  const auto compute = [&](int chunk) -> Result<void> {
    TRY(model_->forward_sequence(chunk, pass(hooks), tokens));
    if (!ends(chunk)) return {};
    const auto found = TRY(model_->logits_of(chunk, tokens.size() - 1, pass(hooks)));
    std::copy(found.begin(), found.end(), answer_.begin());
    return {};
  };
  TRY(pass_through(compute, model_->own_rows_of(tokens.size())));
  TRY(settle());
  TRY(broadcast(std::as_writable_bytes(std::span(answer_)), cut_.stages - 1));
  return std::span<const float>(answer_);
}

Result<std::optional<PipelineTimeline>> RankModel::timeline() {
  // On a GPU a pass has only been enqueued when it returns.
  if (ended_.empty() || !is_on_host() || !is_cut()) return std::optional<PipelineTimeline>{};
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

void RankModel::close() {
  if (!is_on_host()) model_.reset();
}

}  // namespace troupe::apps::gpt
