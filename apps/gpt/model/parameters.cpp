#include "apps/gpt/model/parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/random.hpp"

namespace troupe::apps::gpt {

namespace {

// C width, F feed_forward, V vocabulary, Q the width of queries, K of keys.
class TableBuilder {
 public:
  explicit TableBuilder(const ModelConfig& config) : config_(config) {}

  ParameterTable build() {
    const std::size_t C = config_.width, V = config_.vocabulary;
    const bool tied = config_.tied_embeddings;
    if (!tied) unit_ = 0;
    table_.embedding = matrix("model.embed_tokens.weight", V, C);
    for (std::size_t layer = 0; layer < config_.layers; ++layer) {
      unit_ = layer + (tied ? 0 : 1);
      table_.blocks.push_back(block(fmt::format("model.layers.{}.", layer), layer));
    }
    unit_ = tied ? std::nullopt : std::optional(config_.layers + 1);
    table_.final_norm = norm("model.norm");
    table_.head = config_.tied_embeddings ? table_.embedding : matrix("lm_head.weight", V, C);
    return std::move(table_);
  }

 private:
  BlockParameters block(const std::string& prefix, std::size_t layer) {
    const std::size_t C = config_.width, F = config_.feed_forward;
    BlockParameters block;
    block.attention_norm = norm(prefix + "input_layernorm");
    attention(prefix + "self_attn.", block);
    block.mlp_norm = norm(prefix + "post_attention_layernorm");
    if (config_.experts.in_layer(layer)) {
      block.experts = experts(prefix);
      return block;
    }
    if (config_.activation == Activation::swiglu) block.gate = matrix(prefix + "mlp.gate_proj.weight", F, C);
    block.up = matrix(prefix + "mlp.up_proj.weight", F, C);
    block.down = matrix(prefix + "mlp.down_proj.weight", C, F, residual_scale());
    return block;
  }

  ExpertLayerParameters experts(const std::string& layer) {
    const ExpertConfig& config = config_.experts;
    const bool is_mixtral = config.names == ExpertConfig::Names::mixtral;
    const std::string prefix = layer + (is_mixtral ? "block_sparse_moe." : "mlp.");
    ExpertLayerParameters found;
    found.router = matrix(prefix + "gate.weight", config.count, config_.width);
    const auto spread = config.spread();
    const std::size_t first = spread.first(config.place);
    is_expert_ = true;
    for (std::size_t e = first; e < first + spread.per_rank(); ++e)
      found.experts.push_back(
          gated(fmt::format("{}experts.{}.", prefix, e), config.feed_forward, is_mixtral));
    is_expert_ = false;
    if (config.shared_feed_forward > 0)
      found.shared = gated(prefix + "shared_expert.", config.shared_feed_forward, false);
    if (config.shared_gate)
      found.shared_gate = matrix(prefix + "shared_expert_gate.weight", 1, config_.width);
    return found;
  }

  ExpertWeights gated(const std::string& prefix, std::size_t feed_forward, bool is_mixtral) {
    const std::size_t C = config_.width;
    ExpertWeights weights;
    weights.gate = matrix(prefix + (is_mixtral ? "w1.weight" : "gate_proj.weight"), feed_forward, C);
    weights.up = matrix(prefix + (is_mixtral ? "w3.weight" : "up_proj.weight"), feed_forward, C);
    weights.down =
        matrix(prefix + (is_mixtral ? "w2.weight" : "down_proj.weight"), C, feed_forward, residual_scale());
    return weights;
  }

  void attention(const std::string& prefix, BlockParameters& block) {
    const std::size_t C = config_.width, Q = config_.query_width(), K = config_.key_width();
    const bool biased = config_.query_key_value_bias;
    block.query = matrix(prefix + "q_proj.weight", Q, C);
    if (biased) block.query_bias = vector(prefix + "q_proj.bias", Q, 0);
    block.key = matrix(prefix + "k_proj.weight", K, C);
    if (biased) block.key_bias = vector(prefix + "k_proj.bias", K, 0);
    block.value = matrix(prefix + "v_proj.weight", K, C);
    if (biased) block.value_bias = vector(prefix + "v_proj.bias", K, 0);
    if (config_.query_key_norm) {
      block.query_norm = vector(prefix + "q_norm.weight", config_.head_size(), 1);
      block.key_norm = vector(prefix + "k_norm.weight", config_.head_size(), 1);
    }
    block.output = matrix(prefix + "o_proj.weight", C, Q, residual_scale());
    if (config_.attention_output_bias) block.output_bias = vector(prefix + "o_proj.bias", C, 0);
  }

  NormParameters norm(const std::string& name) {
    NormParameters norm{.weight = vector(name + ".weight", config_.width, 1)};
    if (config_.norm == Norm::layer) norm.bias = vector(name + ".bias", config_.width, 0);
    return norm;
  }

  // Each of the 2L projections into the residual stream adds variance; this keeps the sum's near the
  // embedding's.
  double residual_scale() const { return 1 / std::sqrt(2.0 * static_cast<double>(config_.layers)); }

  std::size_t matrix(std::string name, std::size_t rows, std::size_t columns, double scale = 1) {
    return add({.name = std::move(name),
                .shape = {rows, columns},
                .initialisation = {Initialisation::Kind::normal, config_.initial_deviation * scale},
                .weight_decay = true});
  }

  std::size_t vector(std::string name, std::size_t elements, double value) {
    return add({.name = std::move(name),
                .shape = {elements},
                .initialisation = {Initialisation::Kind::constant, value}});
  }

  std::size_t add(ParameterSpec spec) {
    spec.unit = unit_;
    spec.is_expert = is_expert_;
    table_.specs.push_back(std::move(spec));
    return table_.specs.size() - 1;
  }

  const ModelConfig& config_;
  ParameterTable table_;
  std::optional<std::size_t> unit_;  // of what is being added
  bool is_expert_ = false;           // as above
};

}  // namespace

std::size_t ParameterSpec::elements() const {
  std::size_t product = 1;
  for (const std::size_t extent : shape) product *= extent;
  return product;
}

ParameterTable parameter_table(const ModelConfig& config) {
  return TableBuilder(config).build();
}

std::vector<ParameterSpec> parameters(const ModelConfig& config) {
  return parameter_table(config).specs;
}

std::size_t parameter_count(const ModelConfig& config) {
  std::size_t count = 0;
  for (const ParameterSpec& spec : parameters(config)) count += spec.elements();
  return count;
}

namespace {

/// Calls work(begin, end) for parts of [0, count), large ones on other threads too. Where no more threads are
/// to be had, this one does the rest.
template <class Work>
void in_parts(std::size_t count, const Work& work) {
  constexpr std::size_t kLeast = std::size_t{1} << 16, kMostThreads = 16;
  const std::size_t cores = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, kMostThreads);
  const std::size_t part = std::max(kLeast, (count + cores - 1) / cores);
  std::vector<std::jthread> threads;
  threads.reserve(cores);
  std::size_t begin = 0;
  try {
    for (; begin + part < count; begin += part)
      threads.emplace_back([&work, begin, part] { work(begin, begin + part); });
  } catch (const std::system_error&) {  // the work goes on below
  }
  work(begin, count);
}

}  // namespace

void initialise(const ParameterSpec& spec, std::uint64_t seed, core::ElementRange range,
                std::span<float> values) {
  CHECK(static_cast<std::int64_t>(values.size()) == range.size(),
        "initialise() needs room for exactly the range's elements");
  if (spec.initialisation.kind == Initialisation::Kind::constant) {
    std::fill(values.begin(), values.end(), static_cast<float>(spec.initialisation.value));
    return;
  }
  const core::CounterRandom random(seed, spec.name);
  const float deviation = static_cast<float>(spec.initialisation.value);
  const auto start = static_cast<std::uint64_t>(range.start);
  in_parts(values.size(), [=](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) values[i] = deviation * random.normal(start + i);
  });
}

}  // namespace troupe::apps::gpt
