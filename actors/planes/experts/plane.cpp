#include "actors/planes/experts/plane.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "actors/planes/step/expert_options.hpp"
#include "core/errors.hpp"
#include "core/indices.hpp"
#include "gpu/order/task_order.hpp"

namespace troupe::actors {

using core::Errc;
using core::Result;
using messages::RowsGo;

namespace {

constexpr std::string_view kPrefix = "troupe.experts.";

std::size_t aligned(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

std::int64_t without(const std::vector<std::int64_t>& rows, std::size_t place) {
  return rows.empty() ? 0 : std::accumulate(rows.begin(), rows.end(), std::int64_t{0}) - rows[place];
}

TrainerTensor replicated(std::string key, core::DType dtype, core::Shape shape, core::Rank rank,
                         gpu::BufferView memory) {
  TrainerTensor own;
  own.tensor.key = std::move(key);
  own.tensor.dtype = dtype;
  own.tensor.local_shape = shape;
  own.tensor.global_offset.assign(shape.size(), 0);
  own.tensor.global_shape = std::move(shape);
  own.tensor.replica_id = {rank.value};
  own.memory = memory;
  return own;
}

}  // namespace

Result<std::unique_ptr<ExpertPlane>> ExpertPlane::create(gpu::Device& device, const TrainingPlan& plan,
                                                         Options options) {
  if (expert_words(plan.options) == 0) return std::unique_ptr<ExpertPlane>{};
  std::unique_ptr<ExpertPlane> plane(new ExpertPlane(device, plan, std::move(options)));
  TRY(plane->open());
  return plane;
}

ExpertPlane::ExpertPlane(gpu::Device& device, const TrainingPlan& plan, Options options)
    : device_(device), plan_(plan), options_(std::move(options)) {}

Result<void> ExpertPlane::open() {
  const auto members = plan_.mesh.group(core::GroupKind::ep, options_.rank);
  const auto place =
      static_cast<std::size_t>(std::find(members.begin(), members.end(), options_.rank) - members.begin());
  const auto pieces = static_cast<std::size_t>(plan_.options.own_pieces());
  const auto of_step = pieces * static_cast<std::size_t>(plan_.options.lanes) *
                       static_cast<std::size_t>(plan_.options.microbatches);
  std::size_t bytes = 0;
  for (const auto& layer : plan_.options.experts)
    bytes += aligned(layer.experts * sizeof(float)) + aligned(2 * layer.experts * sizeof(std::int64_t));
  memory_ = TRY(device_.allocate_staging(bytes));
  auto rest = memory_.view();
  const auto take = [&](std::size_t wanted) {
    const auto piece = rest.subview(0, wanted);
    rest = rest.subview(aligned(wanted), rest.bytes - aligned(wanted));
    return piece;
  };
  layers_.resize(plan_.options.experts.size());
  for (std::uint32_t number = 0; number < layers_.size(); ++number) {
    const auto& given = plan_.options.experts[number];
    auto& layer = layers_[number];
    if (given.experts == 0) continue;
    const auto& training = plan_.options;
    const core::ExpertSpread spread{given.experts, members.size(),
                                    static_cast<std::size_t>(training.expert_parts()),
                                    static_cast<std::size_t>(training.expert_columns()),
                                    static_cast<std::size_t>(plan_.expert_column(options_.rank))};
    const auto most = TRY(core::most_expert_rows(
        spread,
        {.tokens = given.tokens, .choices = given.choices, .capacity_factor = given.capacity_factor}));
    layer.config = {.rank = options_.rank,
                    .layer = number,
                    .spread = spread,
                    .members = members,
                    .place = place,
                    .most_rows = given.most_rows.value_or(most),
                    .most_exchanges = given.exchanges > 0 ? given.exchanges : of_step,
                    .pieces = pieces,
                    .bias_rate = given.bias_rate};
    layer.bias_memory = take(given.experts * sizeof(float));
    layer.load_memory = take(2 * given.experts * sizeof(std::int64_t));
    if (given.bias_rate > 0) layer.bias = layer.bias_memory.as<float>();
    const auto load = layer.load_memory.as<std::int64_t>();
    layer.chosen = load.first(given.experts);
    layer.dropped = load.last(given.experts);
    auto machine = std::make_unique<ExpertGroupMachine>(layer.config);
    layer.machine = machine.get();
    layer.role =
        std::make_unique<InlineRole>(messages::Address{options_.rank, messages::Role::expert_group, number},
                                     options_.epoch, std::move(machine), options_.ways);
  }
  return {};
}

std::string ExpertPlane::layers() const {
  std::vector<std::uint32_t> found;
  for (std::uint32_t layer = 0; layer < layers_.size(); ++layer) {
    if (has(layer)) found.push_back(layer);
  }
  return fmt::format("{}", fmt::join(found, ", "));
}

/// What the role that was spoken to asks for: this, or that the trainer's call fails.
template <class Kind>
Result<Kind> ExpertPlane::answer() {
  CHECK(!work_.empty(), "a role answers every call of the trainer");
  const auto work = std::move(work_.front());
  work_.pop_front();
  if (const auto* refused = std::get_if<RefuseRows>(&work))
    return tl::unexpected(messages::error_of(refused->failure));
  auto* const asked = std::get_if<Kind>(&work);
  CHECK(asked != nullptr, "a role asks for what follows from the call");
  return *asked;
}

Result<ExpertPlane::Planned> ExpertPlane::count(std::uint32_t layer, std::optional<core::Lane> lane,
                                                std::vector<std::int64_t> counts, std::int64_t dropped) {
  const auto chosen = std::accumulate(counts.begin(), counts.end(), dropped);
  const auto exchange = ++exchanges_;
  hear(layer, messages::RowsCounted{step_, lane.value_or(core::Lane{-1}), exchange, std::move(counts), chosen,
                                    dropped});
  const auto wanted = TRY(answer<GatherCounts>());
  const auto what = lane && lane->value >= 0
                        ? fmt::format("counts of layer {} in lane {}", layer, lane->value)
                        : fmt::format("counts of layer {}", layer);
  CHECK(carrier_ != nullptr, "a plane is connected before rows are counted");
  auto gathered = carrier_->gather(wanted.counts, what);
  if (!gathered) {
    hear(layer, messages::CountsKnown{exchange, {}});
    return tl::unexpected(std::move(gathered.error()));
  }
  hear(layer, messages::CountsKnown{exchange, *std::move(gathered)});
  auto plan = TRY(answer<HandOutPlan>());
  return Planned{exchange, std::move(plan.plan)};
}

Result<void> ExpertPlane::begin(std::uint32_t layer, std::uint64_t exchange, RowsGo go,
                                const core::RowMove& move, const Rows& rows) {
  if (moving_) {
    return core::fail(Errc::invalid_argument,
                      "rows of layer {} were to move while those of layer {} do; wait for them first", layer,
                      moving_->layer);
  }
  hear(layer, messages::RowsWanted{exchange, go, move.sent, move.taken});
  TRY(answer<MoveRows>());
  const auto place = layers_[layer].config.place;
  moving_ = {layer, exchange, go, without(move.sent, place), without(move.taken, place)};
  auto begun = carrier_->begin(
      rows.input, rows.output, move, rows.row_bytes,
      fmt::format("rows of layer {} {}", layer, go == RowsGo::out ? "to experts" : "from experts"));
  if (!begun) {
    moving_.reset();
    hear(layer, messages::RowsArrived{.exchange = exchange, .go = go, .moved = false});
  }
  return begun;
}

Result<void> ExpertPlane::wait() {
  if (!moving_) return core::fail(Errc::invalid_argument, "no rows of experts move; begin it first");
  const auto moved = *std::exchange(moving_, std::nullopt);
  TRY(carrier_->wait());
  hear(moved.layer, messages::RowsArrived{moved.exchange, moved.go, moved.sent, moved.taken});
  return {};
}

void ExpertPlane::count_load(std::uint32_t layer, std::vector<std::int64_t> chosen,
                             std::vector<std::int64_t> dropped) {
  hear(layer, messages::LoadCounted{step_, std::move(chosen), std::move(dropped)});
}

void ExpertPlane::begin_step(const messages::StepBegan& begun) {
  step_ = begun.step;
  for (std::uint32_t layer = 0; layer < layers_.size(); ++layer) {
    if (has(layer)) hear(layer, begun);
  }
}

Result<void> ExpertPlane::may_finish() const {
  for (const auto& layer : layers_) {
    if (!layer.machine) continue;
    if (auto why = layer.machine->unreturned(); !why.empty())
      return core::fail(Errc::invalid_argument, "{}; combine() them before finish_step()", why);
  }
  return {};
}

std::string ExpertPlane::refusal() const {
  for (const auto& layer : layers_) {
    if (layer.machine && !layer.machine->refusal().empty()) return layer.machine->refusal();
  }
  return {};
}

/// Ranks that share the layers see the same tokens, and one of them counts them.
std::vector<std::int64_t> ExpertPlane::counts() const {
  std::vector<std::int64_t> all;
  const bool counts = plan_.mesh.first_of_group(core::GroupKind::tp, options_.rank) == options_.rank;
  for (const auto& layer : layers_) {
    if (!layer.machine) continue;
    for (const auto* of_layer : {&layer.machine->chosen(), &layer.machine->dropped()})
      all.insert(all.end(), of_layer->begin(), of_layer->end());
  }
  if (!counts) std::fill(all.begin(), all.end(), 0);
  return all;
}

void ExpertPlane::decided(const messages::StepDecided& decided, std::span<const std::int64_t> sums) {
  const auto take = [&](std::size_t count) {
    const std::vector<std::int64_t> part(sums.begin(), sums.begin() + static_cast<std::ptrdiff_t>(count));
    sums = sums.subspan(count);
    return part;
  };
  for (std::uint32_t layer = 0; layer < layers_.size(); ++layer) {
    if (!has(layer)) continue;
    const std::size_t experts = options(layer).experts;
    auto chosen = take(experts);
    hear(layer, messages::LoadSummed{decided.step, std::move(chosen), take(experts)});
    hear(layer, decided);
  }
  keep_all();
}

void ExpertPlane::failed(const core::Error& why) {
  for (std::uint32_t layer = 0; layer < layers_.size(); ++layer) {
    if (has(layer)) hear(layer, messages::StepFailed{step_, messages::failure_of(why)});
  }
}

void ExpertPlane::keep_all() {
  for (; !work_.empty(); work_.pop_front()) {
    const auto* state = std::get_if<KeepExpertState>(&work_.front());
    CHECK(state != nullptr, "a decision asks for nothing but what it changes");
    keep(*state);
  }
}

void ExpertPlane::keep(const KeepExpertState& state) {
  auto& layer = layers_[state.layer];
  gpu::declare(device_, "loads of experts", {}, {layer.bias_memory, layer.load_memory});
  std::copy(state.bias.begin(), state.bias.end(), layer.bias.begin());
  std::copy(state.chosen.begin(), state.chosen.end(), layer.chosen.begin());
  std::copy(state.dropped.begin(), state.dropped.end(), layer.dropped.begin());
}

std::vector<TrainerTensor> ExpertPlane::tensors() const {
  std::vector<TrainerTensor> all;
  for (std::uint32_t number = 0; number < layers_.size(); ++number) {
    const auto& layer = layers_[number];
    if (!layer.machine) continue;
    const auto experts = static_cast<std::int64_t>(layer.chosen.size());
    if (!layer.bias.empty()) {
      all.push_back(replicated(fmt::format("{}{}.bias", kPrefix, number), core::DType::f32, {experts},
                               options_.rank, layer.bias_memory));
    }
    all.push_back(replicated(fmt::format("{}{}.load", kPrefix, number), core::DType::i64, {2, experts},
                             options_.rank, layer.load_memory));
  }
  return all;
}

bool ExpertPlane::is_key(std::string_view key) {
  return key.starts_with(kPrefix);
}

void ExpertPlane::restored() {
  for (std::uint32_t number = 0; number < layers_.size(); ++number) {
    const auto& layer = layers_[number];
    if (!layer.machine) continue;
    gpu::declare(device_, "loads of experts", {layer.bias_memory, layer.load_memory}, {});
    hear(number, messages::ExpertsRestored{{layer.bias.begin(), layer.bias.end()},
                                           {layer.chosen.begin(), layer.chosen.end()},
                                           {layer.dropped.begin(), layer.dropped.end()}});
  }
  keep_all();
}

Result<void> ExpertPlane::restore(std::uint32_t layer, std::vector<float> bias,
                                  std::vector<std::int64_t> chosen, std::vector<std::int64_t> dropped) {
  const std::size_t experts = options(layer).experts;
  if ((!bias.empty() && bias.size() != layers_[layer].bias.size()) || chosen.size() != experts ||
      dropped.size() != experts) {
    return core::fail(Errc::mismatch, "layer {} has {} experts and {} biases, found {}, {} and {} values",
                      layer, experts, layers_[layer].bias.size(), chosen.size(), dropped.size(), bias.size());
  }
  hear(layer, messages::ExpertsRestored{std::move(bias), std::move(chosen), std::move(dropped)});
  keep_all();
  return {};
}

std::vector<WaitReport> ExpertPlane::reports() const {
  std::vector<WaitReport> all;
  for (const auto& layer : layers_) {
    if (layer.role) all.push_back(layer.role->report());
  }
  return all;
}

}  // namespace troupe::actors
