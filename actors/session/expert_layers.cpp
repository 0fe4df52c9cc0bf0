#include "actors/session/expert_layers.hpp"

#include <numeric>
#include <utility>

#include "core/errors.hpp"
#include "core/experts/decision.hpp"
#include "core/experts/dispatch.hpp"
#include "core/experts/router.hpp"

namespace troupe::actors {

using core::Errc;
using core::Result;
using messages::RowsGo;

namespace {

template <class T>
std::vector<T> repeated(const std::vector<T>& values, std::size_t times) {
  std::vector<T> found;
  found.reserve(values.size() * times);
  for (const T& value : values) found.insert(found.end(), times, value);
  return found;
}

core::Dispatch dispatch_of(const ExpertRouting& routing) {
  core::Dispatch dispatch;
  dispatch.first_slot = {0, static_cast<std::int64_t>(routing.choice_of_slot.size())};
  dispatch.choice_of_slot = routing.choice_of_slot;
  dispatch.slot_of_choice = routing.slot_of_choice;
  return dispatch;
}

}  // namespace

std::vector<float> ExpertRouting::gather(std::size_t width, std::span<const float> tokens) const {
  std::vector<float> slots(choice_of_slot.size() * width);
  core::gather_tokens<float>(dispatch_of(*this), choices, width, tokens, slots);
  return slots;
}

std::vector<float> ExpertRouting::weigh(std::size_t width, std::span<const float> slots) const {
  std::vector<float> tokens(weights.size() / choices * width);
  core::combine<float>(dispatch_of(*this), choices, width, weights, slots, tokens);
  return tokens;
}

ExpertRouting::Gradients ExpertRouting::weigh_backward(std::size_t width, std::span<const float> slots,
                                                       std::span<const float> d_tokens) const {
  Gradients gradients{std::vector<float>(slots.size()), std::vector<float>(weights.size())};
  core::combine_backward<float>(dispatch_of(*this), choices, width, weights, slots, d_tokens, gradients.slots,
                                gradients.weights);
  return gradients;
}

class ExpertLayers::Layer final : public ExpertLayer {
 public:
  Layer(ExpertLayers& all, std::uint32_t number) : all_(all), plane_(all.plane_), number_(number) {}

  int experts_here() const override { return static_cast<int>(group().spread.per_rank()); }
  int first_expert() const override { return static_cast<int>(group().spread.first(group().place)); }
  std::int64_t most_rows() const override { return group().most_rows; }
  std::span<const float> bias() const override { return plane_.bias(number_); }
  std::span<const std::int64_t> chosen() const override { return plane_.chosen(number_); }
  std::span<const std::int64_t> dropped() const override { return plane_.dropped(number_); }

  Result<ExpertRouting> route(std::span<const float> logits) override {
    const auto& given = plane_.options(number_);
    if (logits.size() % given.experts != 0 || logits.size() / given.experts > given.tokens) {
      return core::fail(Errc::invalid_argument,
                        "layer {} takes a logit for each of {} experts and up to {} tokens, found {} logits",
                        number_, given.experts, given.tokens, logits.size());
    }
    const std::size_t tokens = logits.size() / given.experts;
    ExpertRouting routes;
    const std::size_t parts = group().spread.parts;
    routes.choices = given.choices * parts;
    routes.weights.resize(tokens * given.choices);
    core::RouterDecision decision;
    const core::RouterRule rule{router(), given.capacity_factor};
    TRY(core::decide_alone<float>({rule, bias(), logits, routes.weights}, 1, decision));
    routes.experts = repeated(decision.experts, parts);
    routes.weights = repeated(routes.weights, parts);
    auto dispatch = core::dispatch_of_parts(group().spread, decision.dispatch);
    const auto planned = TRY(plan(dispatch));
    if (all_.in_lane_()) TRY(count(std::move(decision.chosen), std::move(decision.dropped)));
    take(planned, std::move(dispatch), routes);
    return routes;
  }

  Result<void> route_backward(const ExpertRouting& routes, std::span<const float> logits,
                              std::span<const float> d_weights, std::span<float> d_logits) override {
    const auto experts = plane_.options(number_).experts;
    const std::size_t parts = group().spread.parts, choices = plane_.options(number_).choices * parts;
    if (logits.size() != routes.experts.size() / choices * experts || d_logits.size() != logits.size() ||
        d_weights.size() != routes.weights.size()) {
      return core::fail(
          Errc::invalid_argument,
          "layer {} has routed {} tokens; give a logit for each of {} experts, and a gradient for "
          "each of {} choices",
          number_, routes.experts.size() / choices, experts, choices);
    }
    // Each part of an expert has a share in the gradient of the weight of its choice.
    std::vector<std::int32_t> chosen(routes.experts.size() / parts);
    std::vector<float> d_chosen(chosen.size());
    for (std::size_t i = 0; i < routes.experts.size(); ++i) {
      chosen[i / parts] = routes.experts[i];
      d_chosen[i / parts] += d_weights[i];
    }
    core::route_backward<float>(router(), logits, chosen, d_chosen, d_logits);
    return {};
  }

  Result<void> dispatch(const ExpertRouting& routes, gpu::ConstBufferView slots, gpu::BufferView rows,
                        std::size_t row_bytes) override {
    TRY(check_memory(routes, slots.bytes, rows.bytes, row_bytes));
    const auto used = routes.received * row_bytes;
    return move(
        routes.exchange, RowsGo::out, {routes.sent, routes.taken, {}, {}},
        {slots.subview(0, routes.choice_of_slot.size() * row_bytes), rows.subview(0, used), row_bytes});
  }

  Result<void> combine(const ExpertRouting& routes, gpu::ConstBufferView rows, gpu::BufferView slots,
                       std::size_t row_bytes) override {
    TRY(check_memory(routes, slots.bytes, rows.bytes, row_bytes));
    const auto used = routes.received * row_bytes;
    return move(
        routes.exchange, RowsGo::back, {routes.taken, routes.sent, {}, {}},
        {rows.subview(0, used), slots.subview(0, routes.choice_of_slot.size() * row_bytes), row_bytes});
  }

  Result<Planned> plan(const core::Dispatch& dispatch) override {
    const auto dropped = std::accumulate(dispatch.dropped.begin(), dispatch.dropped.end(), std::int64_t{0});
    auto planned = TRY(
        unless_failed([&] { return plane_.count(number_, all_.in_lane_(), dispatch.counts(), dropped); }));
    planned_ = std::move(planned.plan);
    return Planned{planned.exchange, &planned_};
  }

  Result<void> begin(std::uint64_t exchange, bool out, const core::RowMove& rows, gpu::ConstBufferView input,
                     gpu::BufferView output, std::size_t row_bytes) override {
    return unless_failed([&] {
      return plane_.begin(number_, exchange, out ? RowsGo::out : RowsGo::back, rows,
                          {input, output, row_bytes});
    });
  }

  Result<void> wait() override {
    return unless_failed([&] { return plane_.wait(); });
  }

  Result<void> count(std::vector<std::int64_t> chosen, std::vector<std::int64_t> dropped) override {
    const auto experts = plane_.options(number_).experts;
    if (chosen.size() != experts || dropped.size() != experts) {
      return core::fail(Errc::invalid_argument, "layer {} has {} experts, found counts of {} and {}", number_,
                        experts, chosen.size(), dropped.size());
    }
    return unless_failed([&]() -> Result<void> {
      plane_.count_load(number_, std::move(chosen), std::move(dropped));
      return {};
    });
  }

  Result<void> restore(std::vector<float> bias, std::vector<std::int64_t> chosen,
                       std::vector<std::int64_t> dropped) override {
    return plane_.restore(number_, std::move(bias), std::move(chosen), std::move(dropped));
  }

 private:
  const ExpertGroupConfig& group() const { return plane_.group(number_); }
  core::RouterOptions router() const {
    const auto& given = plane_.options(number_);
    const core::RouterOptions plain{
        .experts = given.experts, .choices = given.choices, .score_before_choice = given.score_before_choice};
    return given.bias_rate > 0 ? plain.with_biases() : plain;
  }

  /// EG-4: what a failed session has on its way is not handed out.
  template <class Call>
  auto unless_failed(const Call& call) -> decltype(call()) {
    const auto failed = [&] {
      auto failure = all_.inbox_.failure();
      if (failure) plane_.failed(*failure);
      return failure;
    };
    if (auto failure = failed()) return tl::unexpected(*std::move(failure));
    auto result = call();
    if (auto failure = failed()) return tl::unexpected(*std::move(failure));
    return result;
  }

  /// An exchange that was refused has no rows, and so no slots.
  void take(const Planned& planned, core::Dispatch dispatch, ExpertRouting& routes) const {
    // In `fast` numerics the gradients of all sources are added to one memory.
    const bool apart = plane_.keeps_sources_apart();
    const auto& plan = *planned.plan;
    routes.exchange = planned.exchange;
    routes.sent = plan.sent;
    routes.taken = plan.received;
    routes.received = static_cast<std::size_t>(plan.received_rows());
    const bool is_refused =
        std::accumulate(plan.sent.begin(), plan.sent.end(), std::int64_t{0}) != dispatch.slots();
    routes.slot_of_choice = std::move(dispatch.slot_of_choice);
    if (is_refused) {
      routes.slot_of_choice.assign(routes.slot_of_choice.size(), core::Dispatch::kDropped);
    } else {
      routes.choice_of_slot = std::move(dispatch.choice_of_slot);
    }
    for (std::uint32_t expert = 0; expert < plan.products.size(); ++expert) {
      for (const auto& part : plan.products[expert]) {
        const auto first = static_cast<std::size_t>(part.first);
        routes.products.push_back({expert, apart ? static_cast<int>(part.source) : 0, first,
                                   first + static_cast<std::size_t>(part.count)});
      }
    }
  }

  Result<void> check_memory(const ExpertRouting& routes, std::size_t slots, std::size_t rows,
                            std::size_t row_bytes) const {
    const auto needed = [&](auto count) { return static_cast<std::size_t>(count) * row_bytes; };
    if (row_bytes > 0 && slots >= needed(routes.choice_of_slot.size()) && rows >= needed(routes.received))
      return {};
    return core::fail(
        Errc::invalid_argument,
        "exchange {} of layer {} has {} slots and {} rows of {} bytes, found memory of {} and {} "
        "bytes for them; give as much, for rows at most {} times {}",
        routes.exchange, number_, routes.choice_of_slot.size(), routes.received, row_bytes, slots, rows,
        most_rows(), row_bytes);
  }

  Result<void> move(std::uint64_t exchange, RowsGo go, const core::RowMove& rows,
                    const ExpertPlane::Rows& memory) {
    return unless_failed([&]() -> Result<void> {
      TRY(plane_.begin(number_, exchange, go, rows, memory));
      return plane_.wait();
    });
  }

  ExpertLayers& all_;
  ExpertPlane& plane_;
  std::uint32_t number_;
  core::ExpertExchange planned_;
};

ExpertLayers::ExpertLayers(ExpertPlane& plane, const TrainerInbox& inbox, InLane in_lane)
    : plane_(plane), inbox_(inbox), in_lane_(std::move(in_lane)) {
  for (std::uint32_t number = 0; number < plane.layer_count(); ++number)
    layers_.push_back(plane.has(number) ? std::make_unique<Layer>(*this, number) : nullptr);
}

ExpertLayers::~ExpertLayers() = default;

void ExpertLayers::connect(const SessionContext& context, Sequencer& sequencer) {
  rows_.emplace(context, sequencer);
  plane_.connect(*rows_);
}

Result<ExpertLayer*> ExpertLayers::find(std::uint32_t layer) {
  if (layer < layers_.size() && layers_[layer]) return layers_[layer].get();
  return core::fail(Errc::invalid_argument,
                    "there is no layer {} of experts; TrainingOptions::experts has layers {}", layer,
                    plane_.layers());
}

}  // namespace troupe::actors
