#include "apps/gpt/experts/session_peers.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::DType;
using core::ParameterIndex;
using core::Result;

namespace {

ParameterIndex index_of_parameter(std::size_t parameter) {
  return {static_cast<std::uint32_t>(parameter)};
}

/// The place of the first owner of each parameter of the whole model; that of a dense one is 0, and does not
/// matter.
std::vector<int> owners_of(const ParameterTable& whole, const core::ExpertSpread& spread) {
  std::vector<int> found(whole.specs.size(), 0);
  for (const BlockParameters& block : whole.blocks) {
    if (!block.experts) continue;
    for (std::size_t e = 0; e < block.experts->experts.size(); ++e) {
      const ExpertWeights& weights = block.experts->experts[e];
      for (const std::size_t parameter : {weights.gate, weights.up, weights.down})
        found[parameter] = static_cast<int>(spread.owner(e));
    }
  }
  return found;
}

/// As a rank has it that has the first parts of all experts.
ModelConfig model_of_first_parts(ModelConfig config) {
  const std::size_t parts = config.experts.parts;
  config = model_of_all(std::move(config));
  config.experts.ranks = config.experts.parts = parts;
  config.experts.feed_forward /= parts;
  return config;
}

}  // namespace

std::vector<core::DeclaredOperation> expert_operations(const ModelConfig& config, const ParameterTable& own,
                                                       std::size_t rows, std::size_t element_bytes) {
  const ExpertConfig& experts = config.experts;
  std::vector<core::DeclaredOperation> operations;
  if (experts.ranks == 1) return operations;
  using Kind = core::DeclaredOperation::Kind;
  using Pass = core::DeclaredOperation::Pass;
  const auto every = [&](std::size_t count) {
    return std::vector(experts.ranks, static_cast<std::int64_t>(count));
  };
  const std::size_t row_bytes = config.width * element_bytes;
  const auto slots = every(rows * experts.sent() * row_bytes),
             received = every(experts.most_rows(rows) * row_bytes);
  for (const BlockParameters& block : own.blocks) {
    if (!block.experts) continue;
    const auto& unit = own.specs[block.experts->router].unit;
    CHECK(unit.has_value(), "a layer is a unit");
    const core::UnitIndex layer{static_cast<std::uint32_t>(*unit)};
    operations.push_back(
        {"ep", Kind::all_gather, DType::i64, every(experts.owners().experts), false, Pass::forward, layer});
    for (const auto pass : {Pass::forward, Pass::backward}) {
      operations.push_back({"ep", Kind::all_to_all, DType::u8, slots, true, pass, layer});
      operations.push_back({"ep", Kind::all_to_all, DType::u8, received, true, pass, layer});
    }
  }
  return operations;
}

Result<ModelConfig> model_of_rank(ModelConfig config, const core::TrainingOptions& training,
                                  core::Rank rank) {
  const auto parts = static_cast<std::size_t>(std::max(training.expert_parts(), 1));
  if (config.experts.feed_forward % parts != 0)
    return core::fail(
        core::Errc::invalid_argument,
        "{} data-parallel ranks have a part of each expert, found a feed_forward of {}; choose an "
        "--expert-tensor-parallel that divides it",
        parts, config.experts.feed_forward);
  config.experts.parts = parts;
  config.experts.feed_forward /= parts;
  config.experts.ranks = static_cast<std::size_t>(std::max(training.expert_ranks(), 1));
  config.experts.members = static_cast<std::size_t>(std::max(training.context_parallel, 1));
  config.experts.grouped = training.numerics == core::Numerics::fast && config.experts.ranks > 1;
  // Those with the same share of the layers: tensor-parallel ranks have neighbouring numbers.
  config.experts.place =
      static_cast<std::size_t>(rank.value / training.tensor_parallel) % config.experts.ranks;
  return config;
}

ModelConfig model_of_all(ModelConfig config) {
  config.experts.feed_forward *= config.experts.parts;
  config.experts.ranks = config.experts.parts = 1;
  config.experts.place = 0;
  return config;
}

Result<std::unique_ptr<SessionPeers>> SessionPeers::create(actors::Session& session,
                                                           const ModelConfig& config,
                                                           const ParameterTable& own,
                                                           const StageMemory& memory,
                                                           std::vector<std::size_t> places) {
  if (session.training().expert_ranks() == 1) return std::unique_ptr<SessionPeers>{};
  auto* const group = TRY(session.group("ep"));
  if (places.empty()) {
    places.resize(own.specs.size());
    std::iota(places.begin(), places.end(), std::size_t{0});
  }
  return std::unique_ptr<SessionPeers>(
      new SessionPeers(session, *group, config, own, memory, std::move(places)));
}

SessionPeers::SessionPeers(actors::Session& session, actors::TrainerGroup& group, const ModelConfig& config,
                           const ParameterTable& own, const StageMemory& memory,
                           std::vector<std::size_t> places)
    : session_(session),
      group_(group),
      memory_(memory),
      places_(std::move(places)),
      whole_(model_of_first_parts(config), {}),
      parts_(config.experts.parts),
      owners_(owners_of(whole_table(), config.experts.spread())) {
  std::map<std::string, std::size_t> kept;
  for (const auto& spec : own.specs) {
    kept[spec.name] = is_expert_.size();
    is_expert_.push_back(spec.is_expert);
  }
  for (const auto& spec : whole_table().specs) {
    const auto found = kept.find(spec.name);
    kept_.push_back(found == kept.end() ? std::nullopt : std::optional(found->second));
  }
}

Result<void> SessionPeers::begin_lane() {
  gradients_.assign(is_expert_.size(), {});
  for (std::size_t own = 0; own < places_.size(); ++own) {
    const std::size_t p = places_[own];
    for (int source = 0; is_expert_[p] && source < group_.size(); ++source) {
      const auto memory = TRY(session_.gradient_memory(index_of_parameter(own), source));
      gradients_[p].push_back(memory.as<float>().data());
    }
  }
  return {};
}

Result<PlannedRows> SessionPeers::plan(std::size_t layer, const core::Dispatch& dispatch) {
  auto* const experts = TRY(session_.experts(static_cast<std::uint32_t>(layer)));
  const auto planned = TRY(experts->plan(dispatch));
  return PlannedRows{planned.exchange, *planned.plan};
}

Result<void> SessionPeers::begin_exchange(const RowsOfExchange& rows, std::span<const std::byte> input,
                                          std::span<std::byte> output, const core::RowMove& move,
                                          std::size_t row_bytes) {
  moving_ = TRY(session_.experts(static_cast<std::uint32_t>(rows.layer)));
  return moving_->begin(rows.number, rows.out, move, gpu::view_of(input), gpu::view_of(output), row_bytes);
}

Result<void> SessionPeers::wait() {
  return moving_->wait();
}

Result<std::span<const float>> SessionPeers::whole(std::size_t place, const Read& read) {
  const auto& spec = whole_table().specs[place];
  values_.resize(spec.elements());
  if (!kept_[place] && !spec.is_expert) return std::span<const float>(values_);
  std::span<const float> own;
  if (kept_[place]) own = TRY(read(*kept_[place]));
  std::copy(own.begin(), own.end(), values_.begin());
  if (!spec.is_expert) return std::span<const float>(values_);
  if (parts_ == 1) {
    TRY(share(values_, owners_[place]));
    return std::span<const float>(values_);
  }
  const std::vector<float> kept(own.begin(), own.end());
  std::vector<float> of_owner(spec.elements());
  for (std::size_t part = 0; part < parts_; ++part) {
    std::copy(kept.begin(), kept.end(), of_owner.begin());
    TRY(share(of_owner, owners_[place] + static_cast<int>(part)));
    const PartLayout layout = whole_.layout(place, part);
    for (std::int64_t run = 0; run < layout.runs; ++run) {
      const auto first = layout.first + run * layout.stride;
      std::copy_n(of_owner.begin() + first, layout.run, values_.begin() + first);
    }
  }
  return std::span<const float>(values_);
}

/// What the owner has, with all ranks of the group.
Result<void> SessionPeers::share(std::span<float> values, int owner) {
  const auto all = std::as_writable_bytes(values);
  gpu::Buffer there;
  if (memory_.is_on_device()) {
    there = TRY(memory_.allocate(all.size()));
    TRY(memory_.write(all, there.view()));
  }
  const auto shared = memory_.is_on_device() ? there.view() : gpu::view_of(all);
  TRY(group_.wait(TRY(group_.broadcast(shared, DType::f32, owner))));
  if (memory_.is_on_device()) TRY(memory_.read(shared, all));
  return {};
}

}  // namespace troupe::apps::gpt
