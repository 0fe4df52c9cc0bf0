#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "actors/session/c/calls.hpp"
#include "actors/session/c/options.hpp"

using troupe::actors::ExpertLayer;
using troupe::actors::c::call;
using troupe::actors::c::missing;
using troupe::actors::c::told;
using troupe::actors::c::with;
using troupe::core::Errc;
using troupe::core::fail;
using troupe::core::Result;

namespace {

using Routing = troupe_experts::Routing;

/// Like call(), with the layer; NULL is an error, and so is a session that was left.
template <class Body>
troupe_status with_experts(troupe_experts* experts, troupe_error* error, const Body& body) {
  if (experts == nullptr)
    return told({Errc::invalid_argument, "experts is NULL; troupe_experts_of() finds a layer"}, error);
  return call(error, [&]() -> Result<void> {
    if (experts->session->is_left)
      return fail(Errc::invalid_argument, "the session was left; join again to use its layers of experts");
    return body(*experts->layer);
  });
}

/// What troupe_experts_route() has given out for this layer and has not been freed.
Result<const Routing*> known(const troupe_experts& experts, const troupe_routing* routing) {
  if (routing == nullptr) return tl::unexpected(missing("routing").error());
  for (const auto& one : experts.routings) {
    if (&one->view == routing) return one.get();
  }
  return fail(Errc::invalid_argument,
              "routing is not one of this layer, or was freed; give what troupe_experts_route() returned");
}

Result<std::size_t> bytes_of(const char* name, const void* data, std::size_t rows, std::size_t row_bytes) {
  constexpr auto kMost = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());
  if (rows > 0 && data == nullptr) return tl::unexpected(missing(name).error());
  if (row_bytes == 0 || rows > kMost / row_bytes)
    return fail(Errc::invalid_argument, "{} has {} rows of {} bytes; give the bytes of a row", name, rows,
                row_bytes);
  return rows * row_bytes;
}

Result<troupe::gpu::BufferView> written(const char* name, void* data, std::size_t rows,
                                        std::size_t row_bytes) {
  const std::size_t bytes = TRY(bytes_of(name, data, rows, row_bytes));
  return troupe::gpu::BufferView{static_cast<std::byte*>(data), bytes};
}

Result<troupe::gpu::ConstBufferView> read(const char* name, const void* data, std::size_t rows,
                                          std::size_t row_bytes) {
  const std::size_t bytes = TRY(bytes_of(name, data, rows, row_bytes));
  return troupe::gpu::ConstBufferView(static_cast<const std::byte*>(data), bytes);
}

std::unique_ptr<Routing> seen_from_c(troupe::actors::ExpertRouting routing) {
  auto seen = std::make_unique<Routing>();
  seen->routing = std::move(routing);
  const auto& found = seen->routing;
  for (const auto& [expert, source, first, end] : found.products) {
    seen->products.push_back({static_cast<std::int32_t>(expert), source, static_cast<std::int64_t>(first),
                              static_cast<std::int64_t>(end - first)});
  }
  seen->view = {found.experts.data(),
                found.weights.data(),
                found.choice_of_slot.data(),
                found.slot_of_choice.data(),
                seen->products.data(),
                found.choice_of_slot.size(),
                found.received,
                seen->products.size()};
  return seen;
}

}  // namespace

troupe_status troupe_options_add_experts(troupe_options* options, const troupe_expert_layer* layer,
                                         troupe_error* error) {
  return call(error, [&]() -> Result<void> {
    if (options == nullptr) return missing("options");
    if (layer == nullptr) return missing("layer");
    if (layer->most_rows < 0)
      return fail(Errc::invalid_argument, "a layer of experts has {} most rows; give 0 or more",
                  layer->most_rows);
    troupe::core::ExpertLayerOptions added;
    added.experts = layer->experts;
    added.choices = layer->choices;
    added.tokens = layer->tokens;
    if (layer->capacity_factor != 0) added.capacity_factor = layer->capacity_factor;
    if (layer->most_rows > 0) added.most_rows = layer->most_rows;
    added.exchanges = layer->exchanges;
    added.bias_rate = layer->bias_rate;
    added.score_before_choice = layer->after_choice == 0;
    options->session.training.experts.push_back(added);
    return {};
  });
}

troupe_status troupe_experts_of(troupe_session* session, uint32_t layer, troupe_experts** experts,
                                troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    if (experts == nullptr) return missing("experts");
    if (session->is_left)
      return fail(Errc::invalid_argument, "the session was left; join again to use its layers of experts");
    auto* const found = TRY(s.experts(layer));
    auto& known = session->experts[layer];
    known.session = session;
    known.layer = found;
    *experts = &known;
    return {};
  });
}

troupe_status troupe_experts_state(troupe_experts* experts, const float** biases, const int64_t** chosen,
                                   const int64_t** dropped, troupe_error* error) {
  return with_experts(experts, error, [&](ExpertLayer& layer) -> Result<void> {
    if (biases != nullptr) *biases = layer.bias().empty() ? nullptr : layer.bias().data();
    if (chosen != nullptr) *chosen = layer.chosen().data();
    if (dropped != nullptr) *dropped = layer.dropped().data();
    return {};
  });
}

troupe_status troupe_experts_route(troupe_experts* experts, const float* logits, size_t tokens,
                                   const troupe_routing** routing, troupe_error* error) {
  return with_experts(experts, error, [&](ExpertLayer& layer) -> Result<void> {
    if (routing == nullptr) return missing("routing");
    const std::size_t count = layer.chosen().size();
    const auto given = TRY(read("logits", logits, tokens, count * sizeof(float)));
    auto routed = seen_from_c(TRY(layer.route(given.template as<float>())));
    *routing = &routed->view;
    experts->routings.push_back(std::move(routed));
    return {};
  });
}

troupe_status troupe_experts_dispatch(troupe_experts* experts, const troupe_routing* routing,
                                      const void* slots, void* rows, size_t row_bytes, troupe_error* error) {
  return with_experts(experts, error, [&](ExpertLayer& layer) -> Result<void> {
    const auto* of = TRY(known(*experts, routing));
    const auto from = TRY(read("slots", slots, of->view.slots, row_bytes));
    const auto to = TRY(written("rows", rows, of->view.received, row_bytes));
    return layer.dispatch(of->routing, from, to, row_bytes);
  });
}

troupe_status troupe_experts_combine(troupe_experts* experts, const troupe_routing* routing, const void* rows,
                                     void* slots, size_t row_bytes, troupe_error* error) {
  return with_experts(experts, error, [&](ExpertLayer& layer) -> Result<void> {
    const auto* of = TRY(known(*experts, routing));
    const auto from = TRY(read("rows", rows, of->view.received, row_bytes));
    const auto to = TRY(written("slots", slots, of->view.slots, row_bytes));
    return layer.combine(of->routing, from, to, row_bytes);
  });
}

troupe_status troupe_experts_backward(troupe_experts* experts, const troupe_routing* routing,
                                      const float* logits, const float* d_weights, float* d_logits,
                                      troupe_error* error) {
  return with_experts(experts, error, [&](ExpertLayer& layer) -> Result<void> {
    const auto* of = TRY(known(*experts, routing));
    const std::size_t choices = of->routing.weights.size(), count = layer.chosen().size();
    const std::size_t tokens = choices / of->routing.choices;
    const auto scores = TRY(read("logits", logits, tokens, count * sizeof(float)));
    const auto given = TRY(read("d_weights", d_weights, choices, sizeof(float)));
    const auto added = TRY(written("d_logits", d_logits, tokens, count * sizeof(float)));
    return layer.route_backward(of->routing, scores.template as<float>(), given.template as<float>(),
                                added.template as<float>());
  });
}

void troupe_routing_free(troupe_experts* experts, const troupe_routing* routing) {
  if (experts == nullptr) return;
  std::erase_if(experts->routings, [&](const auto& one) { return &one->view == routing; });
}
