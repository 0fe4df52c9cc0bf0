#include "apps/gpt/rank/session_peers.hpp"

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

/// The expert that each parameter of the whole model belongs to, if it does.
std::vector<std::optional<std::size_t>> experts_of(const ParameterTable& whole) {
  std::vector<std::optional<std::size_t>> found(whole.specs.size());
  for (const BlockParameters& block : whole.blocks) {
    if (!block.experts) continue;
    for (std::size_t e = 0; e < block.experts->experts.size(); ++e) {
      const ExpertWeights& weights = block.experts->experts[e];
      for (const std::size_t parameter : {weights.gate, weights.up, weights.down}) found[parameter] = e;
    }
  }
  return found;
}

/// The configuration of a rank that has the first parts of all experts.
ModelConfig model_of_first_parts(ModelConfig config) {
  const std::size_t parts = config.experts.parts;
  config = model_of_all(std::move(config));
  config.experts.ranks = config.experts.parts = parts;
  config.experts.feed_forward /= parts;
  return config;
}

}  // namespace

std::vector<core::DeclaredOperation> expert_operations(const ModelConfig& config, const ParameterTable& own,
                                                       std::size_t rows, std::size_t element_bytes,
                                                       std::size_t slices) {
  const ExpertConfig& experts = config.experts;
  std::vector<core::DeclaredOperation> operations;
  if (experts.ranks == 1) return operations;
  using Kind = core::CollectiveKind;
  using core::Pass;
  const auto every = [&](std::size_t count) {
    return std::vector(experts.ranks, static_cast<std::int64_t>(count));
  };
  const std::size_t row_bytes = config.width * element_bytes;
  const auto slots = every(rows * experts.sent() * row_bytes),
             received = every(experts.most_rows(rows) * row_bytes * slices);
  for (const BlockParameters& block : own.blocks) {
    if (!block.experts) continue;
    const auto& unit = own.specs[block.experts->router].unit;
    CHECK(unit.has_value(), "a layer is a unit");
    const core::UnitIndex layer{static_cast<std::uint32_t>(*unit)};
    const auto add = [&](const core::DeclaredOperation& of_member) {
      operations.insert(operations.end(), experts.members_of_rank, of_member);
    };
    add({"ep", Kind::all_gather, DType::i64, every(experts.owners().experts), false, Pass::forward, layer});
    for (const auto pass : {Pass::forward, Pass::backward}) {
      add({"ep", Kind::all_to_all, DType::u8, slots, true, pass, layer});
      add({"ep", Kind::all_to_all, DType::u8, received, true, pass, layer});
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
  config.experts.columns = static_cast<std::size_t>(training.expert_columns());
  config.experts.column = static_cast<std::size_t>(rank.value % training.tensor_parallel) *
                          config.experts.columns / static_cast<std::size_t>(training.tensor_parallel);
  // A layer's share of this is then what the rank has.
  config.experts.feed_forward = config.experts.feed_forward / parts * config.experts.columns;
  config.experts.ranks = static_cast<std::size_t>(std::max(training.expert_ranks(), 1));
  config.experts.members = static_cast<std::size_t>(std::max(training.pieces_of_lane(), 1));
  config.experts.members_of_rank = static_cast<std::size_t>(
      std::max(training.pieces_of_lane() / std::max(training.context_parallel, 1), 1));
  config.experts.grouped = training.numerics == core::Numerics::fast && config.experts.ranks > 1;
  // Those with the same share of the layers: tensor-parallel ranks have neighbouring numbers.
  config.experts.place =
      static_cast<std::size_t>(rank.value / training.tensor_parallel) % config.experts.ranks;
  return config;
}

ModelConfig model_of_all(ModelConfig config) {
  config.experts.feed_forward = config.experts.feed_forward * config.experts.parts / config.experts.columns;
  config.experts.ranks = config.experts.parts = config.experts.columns = 1;
  config.experts.place = config.experts.column = 0;
  return config;
}

Result<std::unique_ptr<SessionPeers>> SessionPeers::create(actors::Session& session,
                                                           const ModelConfig& config,
                                                           const ParameterTable& own,
                                                           const StageMemory& memory,
                                                           std::vector<std::size_t> places) {
  const auto& training = session.training();
  Groups groups;
  if (training.expert_ranks() > 1) groups.experts = TRY(session.group("ep"));
  if (training.expert_columns() > 1) groups.layer = TRY(session.group("tp"));
  if (groups.experts == nullptr && groups.layer == nullptr) return std::unique_ptr<SessionPeers>{};
  if (places.empty()) {
    places.resize(own.specs.size());
    std::iota(places.begin(), places.end(), std::size_t{0});
  }
  return std::unique_ptr<SessionPeers>(
      new SessionPeers(session, groups, config, own, memory, std::move(places)));
}

SessionPeers::SessionPeers(actors::Session& session, const Groups& groups, const ModelConfig& config,
                           const ParameterTable& own, const StageMemory& memory,
                           std::vector<std::size_t> places)
    : session_(session),
      groups_(groups),
      memory_(memory),
      places_(std::move(places)),
      whole_(model_of_first_parts(config), {}),
      spread_(config.experts.spread()),
      experts_(experts_of(whole_table())) {
  for (const auto& spec : own.specs) is_expert_.push_back(spec.is_expert);
  // A rank has those of its column that are in the place of others in theirs.
  std::map<std::string, std::size_t> dense;
  for (std::size_t i = 0; i < own.specs.size(); ++i) dense[own.specs[i].name] = i;
  const auto& whole = whole_table();
  for (const auto& spec : whole.specs) {
    const auto found = dense.find(spec.name);
    kept_.push_back(found == dense.end() || spec.is_expert ? std::nullopt : std::optional(found->second));
  }
  const std::size_t place = config.experts.place;
  for (std::size_t layer = 0; layer < own.blocks.size(); ++layer) {
    if (!own.blocks[layer].experts) continue;
    const auto& here = own.blocks[layer].experts->experts;
    const auto& all = whole.blocks[layer].experts->experts;
    for (std::size_t e = 0; e < all.size(); ++e) {
      if (spread_.owner(e) != place / spread_.parts * spread_.parts) continue;
      const ExpertWeights& mine = here[e % here.size()];
      kept_[all[e].gate] = mine.gate, kept_[all[e].up] = mine.up, kept_[all[e].down] = mine.down;
    }
  }
}

Result<void> SessionPeers::begin_lane() {
  gradients_.assign(is_expert_.size(), {});
  if (groups_.experts == nullptr) return {};
  const int sources = groups_.experts->size() * session_.training().own_pieces();
  for (std::size_t own = 0; own < places_.size(); ++own) {
    const std::size_t p = places_[own];
    for (int source = 0; is_expert_[p] && source < sources; ++source) {
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
  const std::size_t expert = *experts_[place];
  const int owner = static_cast<int>(spread_.owner(expert));
  if (spread_.parts == 1) {
    TRY(share(groups_.experts, values_, owner));
  } else {
    TRY(take_parts(place, {own.begin(), own.end()}, owner));
  }
  const int first = static_cast<int>(spread_.column_of(expert) * layer_ranks());
  TRY(share(groups_.layer, values_, first));
  return std::span<const float>(values_);
}

std::size_t SessionPeers::layer_ranks() const {
  return groups_.layer == nullptr ? 0 : static_cast<std::size_t>(groups_.layer->size()) / spread_.columns;
}

/// `kept` are the values of a whole expert of which this rank has a part, or none.
Result<void> SessionPeers::take_parts(std::size_t place, const std::vector<float>& kept, int owner) {
  std::vector<float> of_owner(values_.size());
  const PartLayout layout = whole_.layout(place, 0);
  for (std::size_t part = 0; part < spread_.parts; ++part) {
    std::copy(kept.begin(), kept.end(), of_owner.begin());
    TRY(share(groups_.experts, of_owner, owner + static_cast<int>(part)));
    for (std::int64_t run = 0; run < layout.runs; ++run) {
      const auto first = run * layout.stride + static_cast<std::int64_t>(part) * layout.run;
      std::copy_n(of_owner.begin() + first, layout.run, values_.begin() + first);
    }
  }
  return {};
}

/// What the owner has, on all ranks of a group, if there is one.
Result<void> SessionPeers::share(actors::TrainerGroup* group, std::span<float> values, int owner) {
  if (group == nullptr) return {};
  const auto all = std::as_writable_bytes(values);
  gpu::Buffer there;
  if (memory_.is_on_device()) {
    there = TRY(memory_.allocate(all.size()));
    TRY(memory_.write(all, there.view()));
  }
  const auto shared = memory_.is_on_device() ? there.view() : gpu::view_of(all);
  TRY(group->wait(TRY(group->broadcast(shared, DType::f32, owner))));
  if (memory_.is_on_device()) TRY(memory_.read(shared, all));
  return {};
}

}  // namespace troupe::apps::gpt
