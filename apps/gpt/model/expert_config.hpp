#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/experts/decision.hpp"
#include "core/experts/exchange.hpp"
#include "core/experts/router.hpp"

namespace troupe::apps::gpt {

/// The experts that take the place of a layer's MLP: each token goes to a few of them, and to one that all
/// share. All are gated as SwiGLU.
struct ExpertConfig {
  /// What Hugging Face calls the tensors.
  enum class Names : std::uint8_t { qwen, mixtral };

  std::size_t count = 0;                ///< of each layer; 0: the model has none
  std::size_t choices = 2;              ///< experts of each token
  std::size_t feed_forward = 0;         ///< elements between the two halves of an expert
  std::size_t shared_feed_forward = 0;  ///< of the expert for all tokens; 0: there is none
  bool shared_gate = false;             ///< its output is multiplied by a sigmoid of the token
  bool score_before_choice = false;     ///< as core::RouterOptions
  /// Choices beyond ceil(tokens * choices / count * factor) of a microbatch are dropped, those with the least
  /// weights first; none: all are kept.
  std::optional<double> capacity_factor;
  double balance = 0;                     ///< coefficient of core::balance_loss(), of each layer
  double z_loss = 0;                      ///< coefficient of core::z_loss(), of each layer
  std::vector<std::size_t> dense_layers;  ///< those that have an MLP all the same
  Names names = Names::qwen;
  /// Ranks among which the experts of each layer are distributed, and which of them this one is: it has those
  /// that owners() gives to `place`. All hold the rest of the model.
  std::size_t ranks = 1;
  std::size_t place = 0;
  /// Those that share each microbatch, whose routers decide about all of its rows: so many of them on each
  /// of neighbouring ranks.
  std::size_t members = 1, members_of_rank = 1;
  /// Parts of each expert that are on different ones of `ranks`: consecutive ones have the parts of the same
  /// experts, of which feed_forward is then the part's.
  std::size_t parts = 1;
  /// Groups of the ranks that share a layer, of which each has other experts, and which of them this rank is
  /// in: the sum over the ranks that share the layer adds what all of them make of a row.
  std::size_t columns = 1;
  std::size_t column = 0;
  /// For distributed experts: one product for the rows of all ranks instead of one for each rank. Gradients
  /// of all of them are added to one memory then, in another order than a rank alone has.
  bool grouped = false;
  /// For balancing without a loss: by how much a step changes a router's biases. 0: it has none. Above 0
  /// scores are sigmoids, and the chosen ones are divided by their sum.
  double bias_rate = 0;
  /// (layers, count), added to scores to choose experts; null: nothing is. Owned by the trainer, which takes
  /// them from its session after each step, and by the models that it makes.
  std::shared_ptr<const std::vector<float>> biases;

  core::ExpertSpread spread() const { return {count, ranks, parts, columns, column}; }
  core::ExpertOwners owners() const { return spread().owners(); }
  std::size_t part() const { return place % parts; }
  /// Rows that go out for each row: one for each part of each expert that it chose.
  std::size_t sent() const { return choices * parts; }
  /// Rows that a layer's experts on one rank may have to compute with, when each rank has `rows` tokens of
  /// its own: all choices of all ranks, or those that a capacity lets through.
  std::size_t most_rows(std::size_t rows) const;
  /// (count) of a layer; empty: it has none.
  std::span<const float> biases_of(std::size_t layer) const {
    return biases ? std::span(*biases).subspan(layer * count, count) : std::span<const float>();
  }
  core::RouterRule rule() const { return {router(), capacity_factor, balance, z_loss}; }
  core::RouterOptions router() const {
    const core::RouterOptions plain{
        .experts = count, .choices = choices, .score_before_choice = score_before_choice};
    return bias_rate > 0 ? plain.with_biases() : plain;
  }
  bool in_layer(std::size_t layer) const {
    return count > 0 && std::find(dense_layers.begin(), dense_layers.end(), layer) == dense_layers.end();
  }
};

}  // namespace troupe::apps::gpt
