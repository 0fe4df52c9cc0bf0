#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "apps/gpt/layers/activation.hpp"
#include "apps/gpt/layers/attention.hpp"
#include "apps/gpt/layers/bias.hpp"
#include "apps/gpt/layers/layer_norm.hpp"
#include "apps/gpt/layers/matmul.hpp"
#include "apps/gpt/layers/pieces.hpp"
#include "apps/gpt/layers/rms_norm.hpp"
#include "apps/gpt/layers/rotary.hpp"
#include "apps/gpt/model/block.hpp"
#include "apps/gpt/model/group.hpp"
#include "apps/gpt/model/tree.hpp"
#include "apps/gpt/model/vocabulary.hpp"
#include "core/errors.hpp"
#include "core/experts/dispatch.hpp"
#include "gpu/buffer.hpp"

namespace troupe::apps::gpt {

/// Computes a model's layers on the host, with apps/gpt/layers and core/experts: a call is done when it
/// returns. The order of every sum is fixed, and part of what the project promises.
template <class T>
class HostEngine {
 public:
  using Element = T;
  using Group = TensorGroup<T>;
  using Counts = typename Group::Counts;
  /// Sums between members need no memory here.
  struct Sums {
    gpu::BufferView scratch{};
  };
  /// Nor does a router.
  struct Desk {};
  struct Text {
    std::span<const std::int32_t> tokens{}, targets{};
  };
  static constexpr bool kIsDevice = false;
  static constexpr std::size_t kAlign = 64;

  static Sums carve_sums(Carver&, std::size_t, std::size_t, std::size_t, std::size_t) { return {}; }
  static std::size_t partial_sums(const ModelConfig&, BatchShape) { return 0; }
  static std::size_t stream_elements(const ModelConfig& config, std::size_t rows) {
    return rows * config.width;
  }

  explicit HostEngine(Rotary<T> rotary) : rotary_(std::move(rotary)) {}

  void copy(const T* from, T* to, std::size_t count) const { std::copy_n(from, count, to); }
  void zero(T* to, std::size_t count) const { std::fill_n(to, count, T{0}); }
  void add(const T* from, T* to, std::size_t count) const {
    for (std::size_t i = 0; i < count; ++i) to[i] += from[i];
  }
  /// (rows, slices, width) to (rows, width), in place: the sums of each row's terms.
  void add_slices(std::size_t rows, std::size_t slices, std::size_t width, T* terms) const {
    for (std::size_t n = 0; slices > 1 && n < rows; ++n) {
      T* row = terms + n * slices * width;
      add_in_tree(slices, width, row);
      if (n > 0) std::copy_n(row, width, terms + n * width);
    }
  }

  void linear_forward(LinearShape shape, const T* x, const T* weight, T* y,
                      Write write = Write::overwrite) const {
    gpt::linear_forward(shape, x, weight, y, write);
  }
  void linear_forward_wide(LinearShape shape, const T* x, const T* weight, T* y) const {
    gpt::linear_forward(shape, x, weight, y);
  }
  void linear_backward_input(LinearShape shape, const T* d_y, const T* weight, T* d_x,
                             Write write = Write::overwrite) const {
    gpt::linear_backward_input(shape, d_y, weight, d_x, write);
  }
  void linear_backward_weight(LinearShape shape, const T* d_y, const T* x, T* d_weight) const {
    gpt::linear_backward_weight(shape, d_y, x, d_weight);
  }

  void bias_forward(std::size_t rows, std::size_t width, const T* bias, T* y) const {
    gpt::bias_forward(rows, width, bias, y);
  }
  void bias_backward(std::size_t rows, std::size_t width, const T* d_y, T*, T* d_bias) const {
    gpt::bias_backward(rows, width, d_y, d_bias);
  }

  void norm_forward(const NormRows<T>& norm, T* y) const {
    norm.mean != nullptr ? layer_norm_forward(layer_norm(norm), y) : rms_norm_forward(rms_norm(norm), y);
  }
  void norm_backward_input(const NormRows<T>& norm, const T* d_y, T* d_x, Write write) const {
    norm.mean != nullptr ? layer_norm_backward_input(layer_norm(norm), d_y, d_x, write)
                         : rms_norm_backward_input(rms_norm(norm), d_y, d_x, write);
  }
  void norm_backward_weight(const NormRows<T>& norm, const T* d_y, T* d_weight, T* d_bias, T*) const {
    norm.mean != nullptr ? layer_norm_backward_weight(layer_norm(norm), d_y, d_weight, d_bias)
                         : rms_norm_backward_weight(rms_norm(norm), d_y, d_weight);
  }

  void rotate(const ModelConfig& config, BatchShape shape, int direction, T* query, T* key) const {
    for (const auto& [heads, x] : {std::pair(config.heads, query), std::pair(config.key_heads(), key)}) {
      direction > 0 ? rotary_.forward(shape.batch, shape.length, heads, x)
                    : rotary_.backward(shape.batch, shape.length, heads, x);
    }
  }

  void swiglu_forward(std::size_t count, const T* gate, const T* up, T* y) const {
    gpt::swiglu_forward(count, gate, up, y);
  }
  void swiglu_backward(std::size_t count, const T* gate, const T* up, const T* d_y, T* d_gate,
                       T* d_up) const {
    gpt::swiglu_backward(count, gate, up, d_y, d_gate, d_up);
  }
  void gelu_forward(std::size_t count, const T* x, T* y) const { gpt::gelu_forward(count, x, y); }
  void gelu_backward(std::size_t count, const T* x, const T* d_y, T* d_x) const {
    gpt::gelu_backward(count, x, d_y, d_x);
  }

  void attention_forward(const Attention<T>& attention, T* y) const { gpt::attention_forward(attention, y); }
  void attention_backward(const Attention<T>& attention, const T*, const T* d_y,
                          const AttentionGradients<T>& gradients) const {
    gpt::attention_backward(attention, d_y, gradients);
  }

  core::Result<void> sum(Group& group, const Sums&, T* values, std::size_t count) const {
    return group.sum({values, count});
  }
  core::Result<void> gather(Group& group, const T* own, T* all, const Counts& counts) const {
    return group.gather({own, counts[group.index()]}, {all, total(counts)}, counts);
  }
  core::Result<void> scatter_sum(Group& group, gpu::BufferView, const T* all, T* own,
                                 const Counts& counts) const {
    return group.scatter_sum({all, total(counts)}, {own, counts[group.index()]}, counts);
  }
  void rows_by_position(const PieceRows& rows, const T* by_member, T* by_position) const {
    gpt::rows_by_position(rows, by_member, by_position);
  }
  void rows_by_member(const PieceRows& rows, const T* by_position, T* by_member) const {
    gpt::rows_by_member(rows, by_position, by_member);
  }

  /// x[n] = the token's row of this rank's part of the table, 0 if it has none.
  void embedding_forward(const BlockContext<HostEngine>& context, const Text& text, const T* table,
                         T* x) const {
    vocabulary_embedding_forward(text.tokens, member(context), context.config.vocabulary,
                                 context.config.width, table, x);
    if (context.slices == 1 || context.tensor->group != nullptr) return;
    // The other slices' zeros: -0 + 0 is 0.
    for (std::size_t i = 0; i < text.tokens.size() * context.config.width; ++i) x[i] += T{0};
  }
  void embedding_backward(const BlockContext<HostEngine>& context, const Text& text, const T* d_x, T*,
                          T* d_table) const {
    vocabulary_embedding_backward(text.tokens, member(context), context.config.vocabulary,
                                  context.config.width, d_x, d_table);
  }
  core::Result<void> cross_entropy_forward(const BlockContext<HostEngine>& context, const Text& text,
                                           const Activations<T>& a, const StepHooks& hooks,
                                           double* loss) const {
    const std::size_t V = context.config.vocabulary;
    Group* const group = context.tensor == nullptr ? nullptr : context.tensor->group;
    const double words =
        TRY(gpt::cross_entropy_forward(group, text.targets, V, a.logits, hooks.loss_rows, context.slices));
    *loss = static_cast<double>(static_cast<T>(words));
    return {};
  }
  void cross_entropy_backward(const BlockContext<HostEngine>& context, const Text& text,
                              const Activations<T>& a, const StepHooks& hooks) const {
    const std::size_t V = context.config.vocabulary;
    const T scale = static_cast<T>(hooks.loss_scale);
    gpt::cross_entropy_backward(text.targets, member(context), V, a.logits, scale, hooks.loss_rows);
  }

  /// The logits of all members' parts of the vocabulary, of which `own` are this one's; in `room` if it has
  /// not all of them.
  core::Result<std::span<const T>> all_logits(const BlockContext<HostEngine>& context, const T* own,
                                              std::vector<T>& room) const {
    const std::span<const T> part(own, context.config.vocabulary);
    if (context.tensor == nullptr || context.tensor->group == nullptr) return part;
    const Counts counts(context.tensor->group->size(), part.size());
    room.resize(total(counts));
    TRY(context.tensor->group->gather(part, room, counts));
    return std::span<const T>(room);
  }

  core::Result<void> choose_experts(Desk*, const ExpertShape& shape, const ExpertActivations<T>& layer,
                                    const T* all, const StepHooks& hooks) const {
    return gpt::choose_experts(shape, layer, all, hooks);
  }
  core::Result<void> choice_backward(Desk*, const ExpertShape& shape, const ExpertActivations<T>& layer,
                                     const StepHooks& hooks, T* d_weights, T* d_logits) const {
    gpt::choice_backward<T>(shape, layer, hooks, {d_weights, shape.rows * shape.config.sent()},
                            {d_logits, shape.rows * shape.config.count});
    return {};
  }

  void gather_tokens(const ExpertTokens<T>& of, const T* x, T* slots) const {
    core::gather_tokens<T>(of.layer.routes->dispatch, of.choices, of.width, tokens(of, x),
                           {slots, of.slots() * of.width});
  }
  void gather_tokens_backward(const ExpertTokens<T>& of, const T* d_slots, T* d_x) const {
    core::gather_tokens_backward<T>(of.layer.routes->dispatch, of.choices, of.width,
                                    {d_slots, of.slots() * of.width}, {d_x, of.rows * of.width});
  }
  void combine(const ExpertTokens<T>& of, const T* slots, T* output) const {
    core::combine<T>(of.layer.routes->dispatch, of.choices, of.width, weights(of),
                     {slots, of.slots() * of.width}, {output, of.rows * of.width});
  }
  /// A weight's gradient is the sum over the slices' terms.
  void combine_backward(const ExpertTokens<T>& of, const T* d_output, T* d_slots, T* d_weights) const {
    const std::size_t slots = of.slots() * of.width;
    const auto& places = of.layer.routes->dispatch;
    if (of.slices == 1) {
      return core::combine_backward<T>(places, of.choices, of.width, weights(of), {of.layer.output, slots},
                                       tokens(of, d_output), {d_slots, slots},
                                       {d_weights, of.rows * of.choices});
    }
    std::vector<T> terms(of.slices);
    for (std::size_t choice = 0; choice < places.slot_of_choice.size(); ++choice) {
      d_weights[choice] = 0;
      if (places.slot_of_choice[choice] == core::Dispatch::kDropped) continue;
      const auto slot = static_cast<std::size_t>(places.slot_of_choice[choice]);
      const T* d_row = d_output + choice / of.choices * of.width;
      for (std::size_t c = 0; c < of.width; ++c)
        d_slots[slot * of.width + c] = weights(of)[choice] * d_row[c];
      for (std::size_t i = 0; i < of.slices; ++i)
        terms[i] = static_cast<T>(dot(of.width, of.layer.output + (slot * of.slices + i) * of.width, d_row));
      add_in_tree(of.slices, 1, terms.data());
      d_weights[choice] = terms.front();
    }
  }

  /// output (N, C) += sigmoid(gate) * of_shared; gate (N) may be null, which stands for 1.
  void add_shared(std::size_t rows, std::size_t width, const T* gate, const T* of_shared, T* output) const {
    for (std::size_t n = 0; n < rows; ++n) {
      const T share = gate == nullptr ? T{1} : sigmoid(gate[n]);
      for (std::size_t c = n * width; c < (n + 1) * width; ++c) output[c] += share * of_shared[c];
    }
  }
  /// d_shared = sigmoid(gate) * d_output, and d_gate (N), the sum over the slices' terms.
  void shared_backward(const SharedRows<T>& of, const T* d_output, T* d_shared, T* d_gate) const {
    std::vector<T> terms(of.slices);
    for (std::size_t n = 0; n < of.rows; ++n) {
      const T share = sigmoid(of.gate[n]);
      const T* d_row = d_output + n * of.width;
      for (std::size_t c = 0; c < of.width; ++c) d_shared[n * of.width + c] = share * d_row[c];
      for (std::size_t i = 0; i < of.slices; ++i) {
        const T product = static_cast<T>(dot(of.width, of.output + (n * of.slices + i) * of.width, d_row));
        terms[i] = product * share * (T{1} - share);
      }
      add_in_tree(of.slices, 1, terms.data());
      d_gate[n] = terms.front();
    }
  }

  /// From the tokens x (N, C) to layer.received.
  template <class Work>
  core::Result<void> tokens_to_products(Desk*, const ExpertConfig& config, const ExpertTokens<T>& of,
                                        ExpertPeers& peers, const T* x, const Work& meanwhile) const {
    ExpertRoutes& routes = *of.layer.routes;
    routes.own = core::own_rows(config.owners(), config.place, routes.dispatch, routes.exchange);
    const auto move = core::tokens_to_products(routes.dispatch, of.choices, routes.exchange);
    const std::span<T> received(of.layer.received, of.received() * of.width);
    return exchange_rows<T>({of.layer.layer, routes.number, true}, move, of.width, peers, tokens(of, x),
                            received, meanwhile);
  }
  template <class Work>
  core::Result<void> slots_to_products(const ExpertConfig& config, const ExpertTokens<T>& of,
                                       ExpertPeers& peers, const T* slots, T*, T* rows,
                                       const Work& meanwhile) const {
    const ExpertRoutes& routes = *of.layer.routes;
    const auto move = core::slots_to_products(routes.own, config.place, routes.exchange);
    const std::span<const T> from(slots, of.slots() * of.width);
    const std::span<T> to(rows, of.received() * of.width);
    return exchange_rows<T>({of.layer.layer, routes.number, true}, move, of.width, peers, from, to,
                            meanwhile);
  }
  core::Result<void> products_to_slots(const ExpertConfig& config, const ExpertTokens<T>& of,
                                       ExpertPeers& peers, const T* rows, T*, T* slots) const {
    const ExpertRoutes& routes = *of.layer.routes;
    const auto move = core::products_to_slots(routes.own, config.place, routes.exchange);
    const std::span<const T> from(rows, of.received() * of.width);
    const std::span<T> to(slots, of.slots() * of.width);
    return exchange_rows<T>({of.layer.layer, routes.number, false}, move, of.width, peers, from, to, nothing);
  }

 private:
  static LayerNorm<T> layer_norm(const NormRows<T>& norm) {
    return {norm.rows, norm.width, norm.epsilon, norm.x, norm.weight, norm.bias, norm.mean, norm.scale};
  }
  static RmsNorm<T> rms_norm(const NormRows<T>& norm) {
    return {norm.rows, norm.width, norm.epsilon, norm.x, norm.weight, norm.scale};
  }
  static std::size_t member(const BlockContext<HostEngine>& context) {
    return context.tensor == nullptr ? 0 : context.tensor->index();
  }
  static std::size_t total(const Counts& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  }
  static double dot(std::size_t count, const T* a, const T* b) {
    double product = 0;
    for (std::size_t c = 0; c < count; ++c) product += static_cast<double>(a[c]) * static_cast<double>(b[c]);
    return product;
  }
  static T sigmoid(T x) { return T{1} / (T{1} + std::exp(-x)); }
  static std::span<const T> tokens(const ExpertTokens<T>& of, const T* x) { return {x, of.rows * of.width}; }
  static std::span<const T> weights(const ExpertTokens<T>& of) {
    return {of.layer.sent.weights, of.rows * of.choices};
  }

  Rotary<T> rotary_;
};

}  // namespace troupe::apps::gpt
