#include "apps/gpt/rank/all_layers.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "apps/gpt/model/narrow_values.hpp"
#include "apps/gpt/stage/shared_model.hpp"
#include "core/convert.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "gpu/kernels.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

constexpr auto kDeadline = std::chrono::minutes(5);

}  // namespace

AllLayers::AllLayers(const TrainerOptions& options, gpu::Device& device, std::unique_ptr<TensorRank> share,
                     std::unique_ptr<ContextRank> context)
    : options_(options),
      device_(device),
      share_(std::move(share)),
      context_(std::move(context)),
      batch_(options.microbatch),
      readable_(table().size()),
      gradients_(table().size()) {}

std::vector<std::size_t> AllLayers::places() const {
  std::vector<std::size_t> places(table().size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  return places;
}

std::vector<core::DeclaredOperation> AllLayers::operations() const {
  const std::size_t rows = options_.microbatch.rows() / options_.model.experts.members;
  return expert_operations(options_.model, table().part(), rows, core::size_of(options_.arithmetic.dtype),
                           table().share().slices);
}

Result<std::size_t> AllLayers::bytes() const {
  if (context_) return ContextRank::bytes(options_, *share_, device_.kind());
  if (table().share().is_sliced()) {
    return shared_model_bytes({options_.model, options_.microbatch, options_.arithmetic, table().share()},
                              device_.kind());
  }
  return memory_need(options_.model, options_.microbatch, options_.arithmetic, device_.kind()).activations;
}

Result<void> AllLayers::prepare() {
  if (is_on_host()) model_ = TRY(make_model());
  return {};
}

Result<void> AllLayers::open(actors::Session& session, const Corpus& corpus) {
  session_ = &session;
  corpus_ = &corpus;
  if (!is_on_host()) compute_ = TRY(session.compute_stream());
  const StageMemory memory(device_, compute_);
  TRY(share_->open(session));
  if (context_) TRY(context_->open(session, memory));
  if (!is_on_host()) model_ = TRY(make_model());
  peers_ = TRY(SessionPeers::create(session, model_->config(), model_->table(), memory));
  return {};
}

Result<std::unique_ptr<TrainableModel>> AllLayers::make_model() {
  if (context_) return context_->make_model(options_, *share_, device_, compute_);
  if (table().share().is_sliced()) {
    return create_shared_model({options_.model, options_.microbatch, options_.arithmetic, table().share()},
                               share_->place(device_, compute_));
  }
  return create_model(options_.model, options_.microbatch, options_.arithmetic, device_, compute_);
}

// A kernel is loaded when it first runs, and loading may wait for everything the device is running: for a
// collective, for example, whose other ranks wait for this one. So every kernel runs once before the first
// collective.
Result<void> AllLayers::warm_up() {
  if (is_on_host()) return {};
  std::size_t largest = 0;
  for (const auto& spec : model_->table().specs) largest = std::max(largest, spec.elements());
  const auto scratch = TRY(device_.allocate(largest * sizeof(float)));
  batch_.fill_evenly(corpus_->evaluation(), 0, 1);
  const std::vector<float*> gradients(readable_.size(), scratch.view().as<float>().data());
  // Their values do not matter, and if they are sharded they are not here yet.
  const std::vector<const std::byte*> parameters(readable_.size(), scratch.view().data);
  AbsentPeers absent(options_.model.experts, options_.microbatch.rows() / options_.model.experts.members,
                     gradients.front());
  StepHooks hooks;
  if (peers_ && peers_->passes() != nullptr) hooks.peers = &absent;
  TRY(model_->forward_backward(parameters, gradients, batch_.tokens(), batch_.targets(), hooks));
  TRY(model_->take_losses());
  model_->take_expert_tally();
  return compute_->synchronize(kDeadline);
}

Result<void> AllLayers::before_use(core::ParameterIndex parameter) {
  TRY(session_->before_use(parameter));
  readable_[parameter.value] = TRY(session_->parameter_memory(parameter)).data;
  return {};
}

StepHooks AllLayers::reading() {
  StepHooks hooks;
  hooks.before_use = [this](std::size_t p) { return before_use({static_cast<std::uint32_t>(p)}); };
  if (peers_) hooks.peers = peers_->passes();
  return hooks;
}

Result<void> AllLayers::play_lanes() {
  gathered_.reset();
  const StepAverage average(options_, corpus_->training(), session_->next_step(), session_->training().lanes);
  for (const core::Lane lane : session_->lanes()) TRY(run_lane(lane, average));
  return {};
}

Result<void> AllLayers::run_lane(core::Lane lane, const StepAverage& average) {
  TRY(session_->begin_lane(lane));
  ExpertPeers* const peers = peers_ ? peers_->passes() : nullptr;
  for (std::uint32_t i = 0; i < gradients_.size(); ++i) {
    const bool is_spread = peers != nullptr && model_->table().specs[i].is_expert;
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
                  .peers = peers};
  average.set(hooks);
  std::size_t targets = 0;
  const int microbatches = session_->training().microbatches;
  for (int m = 0; m < microbatches; ++m) {
    TRY(session_->begin_microbatch(m));
    hooks.last_microbatch = m + 1 == microbatches;
    batch_.fill_at_random(corpus_->training(),
                          {options_.seed, session_->next_step(), lane, static_cast<std::uint32_t>(m)});
    TRY(model_->forward_backward(readable_, gradients_, batch_.tokens(), batch_.targets(), hooks));
    TRY(ready);
    targets +=
        context_ ? context_->own_targets(options_.microbatch, batch_.targets()) : batch_.target_count();
  }
  double losses = 0;
  for (const double one : TRY(model_->take_losses())) losses += one;
  return average.end_lane(*session_, losses, targets);
}

bool AllLayers::needs_others() const {
  return peers_ != nullptr || share_->is_shared() || context_ != nullptr;
}

Result<std::optional<double>> AllLayers::evaluate(std::size_t batches) {
  TargetMean mean(options_.microbatch.rows());
  StepHooks hooks = reading();
  mean.set(hooks);
  for (std::size_t i = 0; i < batches; ++i) {
    batch_.fill_evenly(corpus_->evaluation(), i, batches);
    TRY(model_->forward_loss(readable_, batch_.tokens(), batch_.targets(), hooks));
    mean.count(batch_.target_count());
  }
  for (const double loss : TRY(model_->take_losses())) mean.add(context_ ? TRY(context_->sum(loss)) : loss);
  return mean.value();
}

Result<std::span<const float>> AllLayers::logits(TrainableModel::Tokens tokens) {
  return model_->logits(readable_, tokens, reading());
}

Result<std::uint64_t> AllLayers::parameter_hash() {
  std::uint64_t hash = 0;
  for (std::size_t place = 0; peers_ && place < peers_->whole_table().specs.size(); ++place)
    hash = core::hash64(TRY(whole_of_all(place)), hash);
  if (peers_) return hash;
  for (std::uint32_t i = 0; i < readable_.size(); ++i) {
    if (share_->is_shared()) {
      hash = core::hash64(TRY(whole_parameter({i})), hash);
      continue;
    }
    TRY(session_->before_use({i}));
    gpu::Buffer staging;
    const auto values = TRY(on_host(TRY(session_->parameter_memory({i})), staging));
    hash = core::hash64(values.as<const std::byte>(), hash);
  }
  return hash;
}

Result<void> AllLayers::read_parameter(std::size_t place, core::ElementRange range, std::span<float> values) {
  const core::ParameterIndex parameter{static_cast<std::uint32_t>(place)};
  const auto dtype = options_.arithmetic.dtype;
  const auto offset = static_cast<std::size_t>(range.start) * core::size_of(dtype);
  if (peers_ || share_->is_shared()) {
    if (gathered_ != place) TRY(peers_ ? whole_of_all(place) : whole_parameter(parameter));
    core::convert_elements(dtype, whole_.data() + offset, core::DType::f32,
                           std::as_writable_bytes(values).data(), values.size());
    return {};
  }
  TRY(session_->before_use(parameter));
  gpu::Buffer staging;
  const auto from = TRY(on_host(
      TRY(session_->parameter_memory(parameter)).subview(offset, values.size() * core::size_of(dtype)),
      staging));
  core::convert_elements(dtype, from.data, core::DType::f32, std::as_writable_bytes(values).data(),
                         values.size());
  return {};
}

Result<void> AllLayers::hand_over_parameters() {
  for (std::size_t place = 0; peers_ && place < peers_->whole_table().specs.size(); ++place)
    TRY(whole_of_all(place));
  if (peers_) return {};
  for (std::uint32_t i = 0; i < readable_.size(); ++i) {
    TRY(session_->before_use({i}));
    if (share_->is_shared()) TRY(whole_parameter({i}));
  }
  return {};
}

Result<std::span<const std::byte>> AllLayers::whole_parameter(core::ParameterIndex parameter) {
  TRY(session_->before_use(parameter));
  const auto part = TRY(session_->parameter_memory(parameter));
  if (is_on_host()) {
    whole_ = std::as_bytes(TRY(share_->whole(parameter.value, part.as<float>())));
  } else {
    const StageMemory memory(device_, compute_);
    whole_ = TRY(share_->whole_on_host(parameter.value, {part, options_.arithmetic.dtype}, memory));
  }
  gathered_ = parameter.value;
  return whole_;
}

Result<std::span<const std::byte>> AllLayers::whole_of_all(std::size_t place) {
  const auto dtype = options_.arithmetic.dtype;
  const auto read = [&](std::size_t own) -> Result<std::span<const float>> {
    own_ = floats_of(dtype, TRY(whole_parameter({static_cast<std::uint32_t>(own)})));
    return std::span<const float>(own_);
  };
  of_all_ = elements_of(dtype, TRY(peers_->whole(place, read)));
  whole_ = of_all_;
  gathered_ = place;
  return whole_;
}

/// The same bytes in memory that the host reads: where they are, or in `staging`.
Result<gpu::BufferView> AllLayers::on_host(gpu::BufferView values, gpu::Buffer& staging) {
  if (compute_ == nullptr) return values;
  staging = TRY(device_.allocate_staging(values.bytes));
  gpu::copy(values, staging.view(), compute_);
  TRY(compute_->synchronize(kDeadline));
  return staging.view();
}

}  // namespace troupe::apps::gpt
