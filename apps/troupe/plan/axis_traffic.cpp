#include "apps/troupe/plan/axis_traffic.hpp"

#include <algorithm>

namespace troupe::apps {

namespace {

class Traffic {
 public:
  Traffic(const core::ModelConfig& model, const core::MicrobatchShape& shape, const core::ModelAxes& axes,
          const StageWorkload& work, const core::Links& links)
      : model_(model), shape_(shape), axes_(axes), work_(work), links_(links) {}

  std::vector<AxisTraffic> all() {
    add_tensor();
    add_context();
    add_expert();
    add_pipeline();
    return std::move(found_);
  }

 private:
  double element() const { return static_cast<double>(core::size_of(shape_.dtype)); }
  double tokens() const {
    return static_cast<double>(shape_.sequences * shape_.length / shape_.context_parallel);
  }
  double stream_bytes() const {
    return tokens() * static_cast<double>(model_.transformer.hidden_size) * element();
  }
  /// Layers of the stage that `has` says so of.
  template <class Has>
  std::int64_t layers(Has has) const {
    std::int64_t count = 0;
    for (const auto& [first, size] : work_.layers) {
      for (auto layer = first; layer < first + size; ++layer) count += has(layer) ? 1 : 0;
    }
    return count;
  }
  std::int64_t layers() const {
    return layers([](std::int64_t) { return true; });
  }
  bool begins() const { return work_.layers.front().first == 0; }
  bool ends() const {
    const auto& [first, count] = work_.layers.back();
    return first + count == model_.transformer.num_layers;
  }

  /// `launches` of a microbatch, which send `bytes` together, in `steps` messages one after another each, of
  /// members this many ranks apart.
  void add(std::string_view axis, std::int64_t members, std::int64_t stride, std::int64_t launches,
           std::int64_t steps, double bytes) {
    const bool within_node = members * stride <= links_.node_ranks;
    const core::Link& link = within_node ? links_.inner : links_.outer;
    const auto rounds = static_cast<double>(work_.rounds);
    const double seconds = rounds * (static_cast<double>(launches * steps) * link.latency_seconds +
                                     bytes / link.bytes_per_second);
    found_.push_back({axis, members, within_node, launches * work_.rounds,
                      static_cast<std::int64_t>(rounds * bytes), seconds});
  }

  void add_tensor() {
    const auto n = axes_.tensor_parallel;
    if (n == 1) return;
    // In halves of a sum, which send (n - 1) / n S each.
    const std::int64_t forward = 4, backward = axes_.sequence_parallel ? 6 : 4;
    const auto halves =
        layers() * (forward * (shape_.recompute ? 2 : 1) + backward) + (begins() ? 2 : 0) + (ends() ? 2 : 0);
    const auto each = static_cast<double>(n - 1) / static_cast<double>(n) * stream_bytes();
    const auto share = static_cast<double>(n - 1) / static_cast<double>(n);
    const auto [sums, bytes] = tensor_gradients();
    add("tensor", n, 1, work_.pieces * (halves + 2 * sums), n - 1,
        static_cast<double>(work_.pieces) * (static_cast<double>(halves) * each + 2 * share * bytes));
  }

  /// The sums of gradients of which each rank has a term, and their bytes: of norms and biases of sums by the
  /// rank's rows, of norms of heads by its heads, and of experts' weights by its part of their output.
  std::pair<std::int64_t, double> tensor_gradients() const {
    const auto& config = model_.transformer;
    std::int64_t sums = 0;
    double bytes = 0;
    const auto sum = [&](std::int64_t count, std::int64_t elements, double element_bytes) {
      sums += count;
      bytes += static_cast<double>(count * elements) * element_bytes;
    };
    const auto layer_count = layers();
    const auto experts = layers([&](std::int64_t layer) { return config.layer_has_experts(layer); });
    const auto rows = static_cast<std::int64_t>(tokens());
    if (axes_.sequence_parallel) {
      const bool has_bias = config.normalization == "LayerNorm";
      sum(2 * layer_count + (ends() ? 1 : 0), (has_bias ? 2 : 1) * config.hidden_size, sizeof(float));
      if (config.add_bias_linear) sum(layer_count, config.hidden_size, sizeof(float));
    }
    if (config.qk_layernorm) {
      const auto width = config.kv_channels.value_or(config.hidden_size / config.num_attention_heads);
      sum(2 * layer_count, width, sizeof(float));
    }
    sum(experts, rows * config.moe_router_topk * axes_.expert_parts(), sizeof(float));
    if (model_.builder.shared_expert_gate) sum(experts, rows, element());
    return {sums, bytes};
  }

  void add_context() {
    const auto n = shape_.context_parallel / work_.pieces;
    if (n == 1) return;
    const auto& config = model_.transformer;
    const auto width = config.kv_channels.value_or(config.hidden_size / config.num_attention_heads);
    const auto keys =
        config.num_query_groups.value_or(config.num_attention_heads) * width / axes_.tensor_parallel;
    const auto gathers = layers() * (shape_.recompute ? 6 : 4), sums = layers() * 2;
    const double each = static_cast<double>((n - 1) * keys * work_.pieces) * tokens() * element();
    add("context", n, axes_.tensor_parallel, gathers + sums, n - 1,
        static_cast<double>(gathers + sums * work_.pieces) * each);
  }

  void add_expert() {
    // A row goes to all parts of each of its experts.
    const auto n = axes_.expert_parallel * axes_.expert_parts();
    if (n == 1) return;
    const auto& config = model_.transformer;
    const auto count = layers([&](std::int64_t layer) { return config.layer_has_experts(layer); });
    // Rows go out once, and come back with a term of each slice; in backward gradients do.
    const auto rows = 2 * count * (1 + shape_.slices);
    const double each = static_cast<double>(n - 1) / static_cast<double>(n) *
                        static_cast<double>(config.moe_router_topk * axes_.expert_parts()) * stream_bytes();
    add("expert", n, axes_.tensor_parallel, 4 * count * work_.pieces, n - 1,
        static_cast<double>(rows * work_.pieces) * each);
  }

  void add_pipeline() {
    if (axes_.stages == 1) return;
    const auto chunks = static_cast<std::int64_t>(work_.layers.size());
    const auto messages = work_.pieces * (2 * chunks - (begins() ? 1 : 0) - (ends() ? 1 : 0));
    const auto parts = axes_.sequence_parallel ? axes_.tensor_parallel : 1;
    add("pipeline", axes_.stages, axes_.tensor_parallel * work_.ranks, messages, 1,
        static_cast<double>(messages) * stream_bytes() / static_cast<double>(parts));
    if (model_.builder.share_embeddings_and_output_weights) add_tied_embedding(found_.back());
  }

  void add_tied_embedding(AxisTraffic& pipeline) const {
    const auto vocabulary = static_cast<double>(model_.builder.vocab_size / axes_.tensor_parallel);
    const auto width = static_cast<double>(model_.transformer.hidden_size);
    double messages = 0, bytes = 0;
    if (begins()) {
      messages = 1;
      bytes = vocabulary * width * element();
    } else if (ends() && work_.is_ordered) {
      messages = 2 * static_cast<double>(work_.rounds);
      bytes = static_cast<double>(work_.rounds * work_.pieces) * tokens() * (vocabulary + width) * element();
    } else if (ends()) {
      messages = 1;
      bytes = vocabulary * width * sizeof(float);
    }
    const core::Link& link = pipeline.within_node ? links_.inner : links_.outer;
    pipeline.launches += static_cast<std::int64_t>(messages);
    pipeline.bytes += static_cast<std::int64_t>(bytes);
    pipeline.seconds += messages * link.latency_seconds + bytes / link.bytes_per_second;
  }

  const core::ModelConfig& model_;
  const core::MicrobatchShape& shape_;
  const core::ModelAxes& axes_;
  const StageWorkload& work_;
  const core::Links& links_;
  std::vector<AxisTraffic> found_;
};

}  // namespace

std::vector<AxisTraffic> traffic_of(const core::ModelConfig& model, const core::MicrobatchShape& shape,
                                    const core::ModelAxes& axes, const StageWorkload& work,
                                    const core::Links& links) {
  return Traffic(model, shape, axes, work, links).all();
}

}  // namespace troupe::apps
