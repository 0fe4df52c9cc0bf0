#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include "apps/gpt/cuda/expert_desk.hpp"
#include "apps/gpt/cuda/token_upload.hpp"
#include "apps/gpt/kernels/blas.hpp"
#include "apps/gpt/kernels/expert_kernels.hpp"
#include "apps/gpt/kernels/kernels.hpp"
#include "apps/gpt/kernels/typed_elements.hpp"
#include "apps/gpt/model/block.hpp"
#include "apps/gpt/model/device_group.hpp"
#include "core/errors.hpp"
#include "gpu/kernels.hpp"
#include "gpu/stream.hpp"

namespace troupe::apps::gpt {

/// Like HostEngine, on a GPU, with the kernels of apps/gpt/kernels and cuBLAS: a call is enqueued on one
/// stream, and what it was given must stay alive until the stream has passed it. Only ExpertDesk waits.
/// Experts' tokens are exchanged as whole rows of slots, including a rank's own: NCCL does not take lists of
/// rows.
template <class E>
class CudaEngine {
 public:
  using Element = E;
  using Group = DeviceTensorGroup;
  using Counts = DeviceTensorGroup::Counts;
  using Desk = ExpertDesk;
  using Text = const TokenUpload*;
  /// Memory of sums between members.
  struct Sums {
    gpu::BufferView scratch{};
    cuda::VocabularySums vocabulary{};
  };
  static constexpr bool kIsDevice = true;
  static constexpr std::size_t kAlign = 256;  // which suits kernels and cuBLAS

  /// For `most` elements of each member, the vocabulary's sums over `rows`, and as many `floats`.
  static Sums carve_sums(Carver& carver, std::size_t members, std::size_t rows, std::size_t most,
                         std::size_t floats) {
    Sums sums;
    sums.vocabulary = {carver.take<float>(rows), carver.take<float>(2, rows)};
    const std::size_t of_floats = sum_scratch_bytes(members, std::max(2 * rows, floats), core::DType::f32);
    const std::size_t bytes = std::max(members * most * sizeof(E), of_floats);
    sums.scratch = {carver.take<std::byte>(bytes), bytes};
    return sums;
  }
  static std::size_t partial_sums(const ModelConfig& config, BatchShape shape) {
    const std::size_t N = shape.rows(), C = config.width;
    const std::size_t Q = config.query_width(), K = config.key_width();
    std::size_t partials = std::max(cuda::norm_partials(N, C), segments_at_most(config, shape) * C);
    if (config.query_key_value_bias) partials = std::max(partials, cuda::norm_partials(N, std::max(Q, K)));
    if (config.query_key_norm)
      partials = std::max(partials, cuda::norm_partials(N * config.heads, config.head_size()));
    return partials;
  }
  /// Elements of the rows that stages send to each other; in a model with experts one double per layer
  /// follows them.
  static std::size_t stream_elements(const ModelConfig& config, std::size_t rows) {
    const std::size_t routes = config.experts.count > 0 ? config.layers * sizeof(double) : 0;
    return rows * config.width + routes / sizeof(E);
  }

  /// The angles are (context, D/2). All of it must outlive the engine.
  CudaEngine(Blas& blas, gpu::StreamView stream, const float* cosine, const float* sine)
      : blas_(&blas), stream_(stream), cosine_(cosine), sine_(sine) {}

  /// Enqueues kernels as one task.
  template <class Launch>
  void run(std::string_view label, Launch launch) const {
    stream_->run_native(
        label, [&](void* native) { return static_cast<int>(launch(static_cast<cudaStream_t>(native))); });
  }

  void copy(const E* from, E* to, std::size_t count) const {
    if (count > 0) gpu::copy(elements(from, count).view, elements(to, count).view, stream_);
  }
  template <class V>
  void zero(V* to, std::size_t count) const {
    if (count > 0) gpu::zero(elements(to, count).view, stream_);
  }
  template <class V>
  void add(const V* from, V* to, std::size_t count) const {
    if (count > 0) gpu::accumulate(elements(from, count), elements(to, count), stream_);
  }
  /// A GPU computes one slice, that of its rank.
  template <class V>
  void add_slices(std::size_t, std::size_t slices, std::size_t, V*) const {
    CHECK(slices == 1, "only the host computes several slices");
  }

  void linear_forward(LinearShape shape, const E* x, const E* weight, E* y,
                      Write write = Write::overwrite) const {
    blas_->linear_forward(shape, x, weight, y, write);
  }
  void linear_forward_wide(LinearShape shape, const E* x, const E* weight, float* y) const {
    blas_->linear_forward_wide(shape, x, weight, y);
  }
  void linear_backward_input(LinearShape shape, const E* d_y, const E* weight, E* d_x,
                             Write write = Write::overwrite) const {
    blas_->linear_backward_input(shape, d_y, weight, d_x, write);
  }
  void linear_backward_weight(LinearShape shape, const E* d_y, const E* x, float* d_weight) const {
    blas_->linear_backward_weight(shape, d_y, x, d_weight);
  }

  void bias_forward(std::size_t rows, std::size_t width, const E* bias, E* y) const {
    if (rows == 0) return;
    run("bias", [&](cudaStream_t stream) { return cuda::bias_forward(rows, width, bias, y, stream); });
  }
  void bias_backward(std::size_t rows, std::size_t width, const E* d_y, float* partials,
                     float* d_bias) const {
    if (rows == 0) return;
    run("bias backward",
        [&](cudaStream_t stream) { return cuda::bias_backward(rows, width, d_y, partials, d_bias, stream); });
  }

  void norm_forward(const NormRows<E>& norm, E* y) const {
    if (norm.rows == 0) return;
    run("norm", [&](cudaStream_t stream) { return cuda::norm_forward(of(norm), y, stream); });
  }
  void norm_backward_input(const NormRows<E>& norm, const E* d_y, E* d_x, Write write) const {
    if (norm.rows == 0) return;
    run("norm backward",
        [&](cudaStream_t stream) { return cuda::norm_backward_input(of(norm), d_y, d_x, write, stream); });
  }
  void norm_backward_weight(const NormRows<E>& norm, const E* d_y, float* d_weight, float* d_bias,
                            float* partials) const {
    if (norm.rows == 0) return;
    run("norm backward", [&](cudaStream_t stream) {
      return cuda::norm_backward_weight<E>(of(norm), {d_y, d_weight, d_bias, partials}, stream);
    });
  }

  void rotate(const ModelConfig& config, BatchShape shape, int direction, E* query, E* key) const {
    const cuda::Turn<E> turn{shape.rows(),
                             shape.length,
                             config.heads,
                             config.key_heads(),
                             config.head_size() / 2,
                             cosine_,
                             sine_,
                             static_cast<float>(direction),
                             query,
                             key};
    run("rotary", [&](cudaStream_t stream) { return cuda::rotary(turn, stream); });
  }

  void swiglu_forward(std::size_t count, const E* gate, const E* up, E* y) const {
    run("swiglu", [&](cudaStream_t stream) { return cuda::swiglu_forward(count, gate, up, y, stream); });
  }
  void swiglu_backward(std::size_t count, const E* gate, const E* up, const E* d_y, E* d_gate,
                       E* d_up) const {
    run("swiglu backward", [&](cudaStream_t stream) {
      return cuda::swiglu_backward(count, gate, up, d_y, d_gate, d_up, stream);
    });
  }
  void gelu_forward(std::size_t count, const E* x, E* y) const {
    run("gelu", [&](cudaStream_t stream) { return cuda::gelu_forward(count, x, y, stream); });
  }
  void gelu_backward(std::size_t count, const E* x, const E* d_y, E* d_x) const {
    run("gelu backward",
        [&](cudaStream_t stream) { return cuda::gelu_backward(count, x, d_y, d_x, stream); });
  }

  void attention_forward(const Attention<E, float>& attention, E* y) const {
    run("attention", [&](cudaStream_t stream) { return cuda::attention_forward(of(attention, y), stream); });
  }
  void attention_backward(const Attention<E, float>& attention, E* y, const E* d_y,
                          const AttentionGradients<E, float>& d) const {
    run("attention backward", [&](cudaStream_t stream) {
      return cuda::attention_backward<E>(of(attention, y), {d_y, d.query, d.key, d.value, d.scratch}, stream);
    });
  }

  template <class V>
  core::Result<void> sum(Group& group, const Sums& sums, V* values, std::size_t count) const {
    return group.sum(elements(values, count), sums.scratch);
  }
  template <class V>
  core::Result<void> gather(Group& group, const V* own, V* all, const Counts& counts) const {
    return group.gather(elements(own, counts[group.index()]), elements(all, total(counts)), counts);
  }
  core::Result<void> scatter_sum(Group& group, gpu::BufferView scratch, const E* all, E* own,
                                 const Counts& counts) const {
    return group.scatter_sum(elements(all, total(counts)), elements(own, counts[group.index()]), counts,
                             scratch);
  }
  template <class V>
  void rows_by_position(const PieceRows& rows, const V* by_member, V* by_position) const {
    run("pieces",
        [&](cudaStream_t stream) { return cuda::rows_by_position<V>(rows, by_member, by_position, stream); });
  }
  void rows_by_member(const PieceRows& rows, const E* by_position, E* by_member) const {
    run("pieces",
        [&](cudaStream_t stream) { return cuda::rows_by_member<E>(rows, by_position, by_member, stream); });
  }

  void embedding_forward(const BlockContext<CudaEngine>& context, Text text, const E* table, E* x) const {
    run("embedding", [&](cudaStream_t stream) {
      return cuda::embedding_forward(text->place().tokens, context.shape.rows(), context.config.width, table,
                                     x, stream);
    });
  }
  void embedding_backward(const BlockContext<CudaEngine>& context, Text text, const E* d_x, float* partials,
                          float* d_table) const {
    run("embedding backward", [&](cudaStream_t stream) {
      return cuda::embedding_backward(text->order(), context.config.width, d_x, partials, d_table, stream);
    });
  }
  core::Result<void> cross_entropy_forward(const BlockContext<CudaEngine>& context, Text text,
                                           const Activations<E>& a, const StepHooks& hooks,
                                           double* loss) const {
    const auto entropy = entropy_of(context, text, a, hooks);
    if (context.tensor == nullptr) {
      run("cross entropy",
          [&](cudaStream_t stream) { return cuda::cross_entropy_forward(entropy, loss, stream); });
      return {};
    }
    const auto& [scratch, sums] = context.tensor->sums;
    Group& group = *context.tensor->group;
    run("greatest logits",
        [&](cudaStream_t stream) { return cuda::vocabulary_greatest(entropy, sums, stream); });
    TRY(group.max(elements(sums.most, entropy.rows)));
    run("cross entropy", [&](cudaStream_t stream) { return cuda::vocabulary_sums(entropy, sums, stream); });
    TRY(group.sum(elements(sums.sums, 2 * entropy.rows), scratch));
    run("losses", [&](cudaStream_t stream) { return cuda::vocabulary_losses(entropy, sums, loss, stream); });
    return {};
  }
  void cross_entropy_backward(const BlockContext<CudaEngine>& context, Text text, const Activations<E>& a,
                              const StepHooks& hooks) const {
    auto entropy = entropy_of(context, text, a, hooks);
    entropy.scale = static_cast<float>(hooks.loss_scale);
    run("cross entropy backward",
        [&](cudaStream_t stream) { return cuda::cross_entropy_backward(entropy, stream); });
  }

  core::Result<void> choose_experts(ExpertDesk* desk, const ExpertShape& shape,
                                    const ExpertActivations<E>& layer, const float* all,
                                    const StepHooks& hooks) const {
    return desk->choose(layer.layer, *layer.routes, shape, all == nullptr ? layer.logits : all, hooks,
                        layer.sent, stream_);
  }
  core::Result<void> choice_backward(ExpertDesk*, const ExpertShape& shape, const ExpertActivations<E>& layer,
                                     const StepHooks& hooks, float* d_weights, E* d_logits) const {
    const core::RouterRule rule = shape.config.rule();
    const core::RouterOptions& router = rule.router;
    const double scale = hooks.scale_of_router();
    const bool is_sigmoid = router.score == core::ScoreFunction::sigmoid;
    const cuda::RouterGradients gradients{
        .rows = shape.rows,
        .experts = router.experts,
        .choices = router.choices,
        .parts = shape.config.parts,
        .is_sigmoid = is_sigmoid,
        .is_softmax_of_chosen = !is_sigmoid && !router.score_before_choice,
        .is_normalised = router.normalise,
        .scale = static_cast<float>(router.scale),
        .balance = core::balance_of_count(router, layer.routes->load, rule.balance * scale),
        .z = rule.z_loss * scale / static_cast<double>(shape.member.members),
        .logits = layer.logits,
        .chosen = layer.sent.experts,
        .counts = layer.sent.counts,
        .d_weights = d_weights};
    run("router backward",
        [&](cudaStream_t stream) { return cuda::router_backward(gradients, d_logits, stream); });
    return {};
  }

  void gather_tokens(const ExpertTokens<E>& of, const E* x, E* slots) const {
    run("gather tokens",
        [&](cudaStream_t stream) { return cuda::gather_tokens(places(of), x, slots, stream); });
  }
  void gather_tokens_backward(const ExpertTokens<E>& of, const E* d_slots, E* d_x) const {
    run("gather backward",
        [&](cudaStream_t stream) { return cuda::combine<E>(places(of), nullptr, d_slots, d_x, stream); });
  }
  void combine(const ExpertTokens<E>& of, const E* slots, E* output) const {
    run("combine", [&](cudaStream_t stream) {
      return cuda::combine<E>(places(of), of.layer.sent.weights, slots, output, stream);
    });
  }
  void combine_backward(const ExpertTokens<E>& of, const E* d_output, E* d_slots, float* d_weights) const {
    run("combine backward", [&](cudaStream_t stream) {
      return cuda::combine_backward<E>(places(of), of.layer.sent.weights, of.layer.output,
                                       {d_output, d_slots, d_weights}, stream);
    });
  }
  void add_shared(std::size_t rows, std::size_t width, const E* gate, const E* of_shared, E* output) const {
    run("shared expert", [&](cudaStream_t stream) {
      return cuda::add_shared<E>(rows, width, gate, of_shared, output, stream);
    });
  }
  void shared_backward(const SharedRows<E>& of, const E* d_output, E* d_shared, E* d_gate) const {
    run("shared expert backward", [&](cudaStream_t stream) {
      return cuda::shared_backward(of.rows, of.width, of.gate, of.output, d_output, d_shared, d_gate, stream);
    });
  }

  template <class Work>
  core::Result<void> tokens_to_products(ExpertDesk* desk, const ExpertConfig& config,
                                        const ExpertTokens<E>& of, ExpertPeers& peers, const E* x,
                                        const Work& meanwhile) const {
    gather_tokens(of, x, of.layer.gathered);
    if (config.grouped) desk->send_groups(of.layer.routes->exchange, of.layer.sent, stream_);
    return slots_to_products(config, of, peers, of.layer.gathered, of.layer.moved, of.layer.received,
                             meanwhile);
  }
  /// The rows that this rank's products read, from all ranks' slots (S, C), which are ordered by expert and
  /// therefore by rank; `moved` is for grouped products.
  template <class Work>
  core::Result<void> slots_to_products(const ExpertConfig&, const ExpertTokens<E>& of, ExpertPeers& peers,
                                       const E* slots, E* moved, E* rows, const Work& meanwhile) const {
    const auto& [number, exchange] = std::pair(of.layer.routes->number, &of.layer.routes->exchange);
    const std::span<const E> from(slots, of.slots() * of.width);
    const std::span<E> to(exchange->grouped ? moved : rows, of.received() * of.width);
    TRY(exchange_rows<E>({of.layer.layer, number, true}, {exchange->sent, exchange->received, {}, {}},
                         of.width, peers, from, to, meanwhile));
    if (exchange->grouped) order_rows(of, of.layer.sent.row_of_product, to.data(), rows);
    return {};
  }
  /// The reverse.
  core::Result<void> products_to_slots(const ExpertConfig&, const ExpertTokens<E>& of, ExpertPeers& peers,
                                       const E* rows, E* moved, E* slots) const {
    const auto& [number, exchange] = std::pair(of.layer.routes->number, &of.layer.routes->exchange);
    if (exchange->grouped) order_rows(of, of.layer.sent.product_of_row, rows, moved);
    const std::span<const E> from(exchange->grouped ? moved : rows, of.received() * of.width);
    const std::span<E> to(slots, of.slots() * of.width);
    return exchange_rows<E>({of.layer.layer, number, false}, {exchange->received, exchange->sent, {}, {}},
                            of.width, peers, from, to, nothing);
  }

 private:
  static std::size_t total(const Counts& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  }
  static cuda::Norm<E> of(const NormRows<E>& norm) {
    return {norm.rows, norm.width, norm.epsilon, norm.x, norm.weight, norm.bias, norm.mean, norm.scale};
  }
  static cuda::Attention<E> of(const Attention<E, float>& attention, E* y) {
    const auto& [shape, query, key, value, log_sum, rows] = attention;
    return {.batch = shape.batch,
            .length = shape.length,
            .heads = shape.heads,
            .head_size = shape.head_size,
            .key_heads = shape.key_heads,
            .query = query,
            .key = key,
            .value = value,
            .y = y,
            .log_sum = log_sum,
            .rows = rows};
  }
  static cuda::CrossEntropy<E> entropy_of(const BlockContext<CudaEngine>& context, Text text,
                                          const Activations<E>& a, const StepHooks& hooks) {
    return {context.shape.rows(),
            context.config.vocabulary,
            text->place().targets,
            a.logits,
            a.log_sum,
            a.row_losses,
            hooks.loss_rows.value_or(text->learned())};
  }
  static cuda::ExpertPlaces places(const ExpertTokens<E>& of) {
    const auto& sent = of.layer.sent;
    return {of.rows, of.choices, of.slots(), of.width, sent.choice_of_slot, sent.slot_of_choice};
  }
  /// Converts between the order in which ranks exchange rows and that of grouped products: to[i] =
  /// from[list[i]].
  void order_rows(const ExpertTokens<E>& of, const std::int32_t* list, const E* from, E* to) const {
    const cuda::ExpertPlaces places{of.received(), 1, of.received(), of.width, list, nullptr};
    run("order rows", [&](cudaStream_t stream) { return cuda::gather_tokens(places, from, to, stream); });
  }

  Blas* blas_;
  gpu::StreamView stream_;
  const float* cosine_;
  const float* sine_;
};

}  // namespace troupe::apps::gpt
